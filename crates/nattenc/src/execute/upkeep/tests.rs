//! What goes, what stays, what is told, on caches of a few small files.

use super::*;
use crate::execute::cache::{Blob, Cache, Key};
use crate::failure::{Class, class};

struct Bench {
    home: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        Bench { home: tempfile::tempdir().unwrap() }
    }

    fn upkeep(&self) -> Upkeep {
        Upkeep::new(self.home.path())
    }

    fn at(&self, kind: &str, digest: &str) -> PathBuf {
        cache::place(&self.home.path().join("cache"), kind, digest)
    }

    /// A finished job that made `bytes`, last of use `hours` ago. Returns its key and its output.
    fn entry(&self, kind: &str, bytes: &[u8], hours: u64) -> (String, Blob) {
        let cache = Cache::new(self.home.path(), &self.home.path().join("instead"));
        let blob = cache.put(bytes).unwrap();
        let mut key = Key::new(kind);
        key.add("in", &blob.sha256);
        let key = key.finish();
        let action = Action {
            kind: kind.to_owned(),
            outputs: vec![blob.clone()],
            headers: vec![],
            cpu: 1.0,
            wall: 1.0,
            peak_memory: 1,
        };
        cache.put_action(&key, &action).unwrap();
        for path in [self.at("ac", &key), self.at("cas", &blob.sha256)] {
            fs::set_modified(&path, SystemTime::now() - Duration::from_secs(hours * 3600 + 60)).unwrap();
        }
        (key, blob)
    }

    /// Whether the record and the bytes of an entry are there.
    fn there(&self, (key, blob): &(String, Blob)) -> (bool, bool) {
        (self.at("ac", key).exists(), self.at("cas", &blob.sha256).exists())
    }
}

/// Bytes that do not pack.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed;
    std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    })
    .take(length)
    .collect()
}

#[test]
fn oldest_bytes_go_first_of_one_hour_the_largest_and_records_last() {
    let bench = Bench::new();
    let old = bench.entry("cicc", &noise(1, 100), 50);
    let large = bench.entry("preprocess", &noise(2, 9000), 5);
    let small = bench.entry("ptxas", &noise(3, 100), 5);
    let new = bench.entry("host", &noise(4, 9000), 1);
    let size = bench.upkeep().stats().unwrap().bytes;
    let upkeep = bench.upkeep();
    let there = || [&old, &large, &small, &new].map(|entry| bench.there(entry));
    let (whole, record, gone) = ((true, true), (true, false), (false, false));

    let evicted = upkeep.evict(Bounds { size: Some(size), age: None }).unwrap();
    assert!(!evicted.is_notable() && there() == [whole; 4]);
    let evicted = upkeep.evict(Bounds { size: Some(size - 1), age: None }).unwrap();
    assert_eq!((evicted.large.count, evicted.old.count, there()), (1, 0, [record, whole, whole, whole]));
    let evicted = upkeep.evict(Bounds { size: Some(12_000), age: None }).unwrap();
    assert_eq!((evicted.large.count, there()), (1, [record, record, whole, whole]));
    assert_eq!(evicted.kept.bytes, upkeep.stats().unwrap().bytes);
    assert!(evicted.kept.bytes <= 12_000);
    assert_eq!(upkeep.stats().unwrap().without_bytes, 2);
    assert!(upkeep.verify().unwrap().failure().is_none(), "bytes that went are no damage");
    let evicted = upkeep.evict(Bounds { size: None, age: Some(Duration::from_secs(2 * 3600)) }).unwrap();
    assert_eq!((evicted.old.count, there()), (4, [gone, gone, gone, whole]));
    let evicted = upkeep.evict(Bounds { size: Some(0), age: None }).unwrap();
    assert_eq!((evicted.large.count, evicted.kept, there()), (2, Amount::default(), [gone; 4]));
    assert!(evicted.text().contains("2 files evicted"), "{}", evicted.text());
}

#[test]
fn hit_makes_a_record_young_again_and_a_read_its_bytes() {
    let bench = Bench::new();
    let (hit, read, unused) = (
        bench.entry("cicc", b"hit", 50),
        bench.entry("host", b"read", 50),
        bench.entry("cicc", b"unused", 40),
    );
    let cache = Cache::new(bench.home.path(), bench.home.path());
    assert_eq!(cache.action(&hit.0).unwrap().outputs, std::slice::from_ref(&hit.1));
    cache.action(&read.0).unwrap();
    cache.get(&read.1).unwrap();
    drop(cache);
    bench.upkeep().evict(Bounds { size: None, age: Some(Duration::from_secs(3600)) }).unwrap();
    assert_eq!([&hit, &read, &unused].map(|e| bench.there(e)), [(true, false), (true, true), (false, false)]);
}

#[test]
fn while_builds_run_what_was_of_use_a_moment_ago_stays() {
    let bench = Bench::new();
    let old = bench.entry("cicc", b"old", 3);
    let fresh = bench.entry("cicc", b"fresh", 0);
    let building = Cache::new(bench.home.path(), bench.home.path());
    let nothing = Bounds { size: Some(0), age: None };
    let evicted = bench.upkeep().evict(nothing).unwrap();
    assert_eq!((bench.there(&old), bench.there(&fresh)), ((false, false), (true, true)));
    assert!(evicted.spared == 2 && evicted.text().contains("2 kept that are of use to running builds"));
    drop(building);
    bench.upkeep().evict(nothing).unwrap();
    assert_eq!(bench.there(&fresh), (false, false));
}

#[test]
fn nothing_is_cleared_that_a_build_uses() {
    let bench = Bench::new();
    let entry = bench.entry("cicc", b"old", 3);
    let building = Cache::new(bench.home.path(), bench.home.path());
    let error = bench.upkeep().clear().unwrap_err();
    assert_eq!((class(&error), bench.there(&entry)), (Class::Locked, (true, true)), "{error}");
    drop(building);
    bench.upkeep().clear().unwrap();
    assert_eq!(bench.there(&entry), (false, false));
}

#[test]
fn cache_that_gives_no_answer_is_a_failure_that_names_it() {
    let bench = Bench::new();
    let (key, _) = bench.entry("cicc", b"x", 3);
    fs::remove_file(&bench.at("ac", &key)).unwrap();
    fs::pipe(&bench.at("ac", &key));
    fs::remove_file(&bench.home.path().join("cache/lock")).unwrap();
    fs::pipe(&bench.home.path().join("cache/lock"));
    let clear = Upkeep::within(bench.home.path(), Duration::from_millis(200), Upkeep::clear);
    let error = clear.unwrap_err();
    assert_eq!(class(&error), Class::Resource);
    assert!(error.to_string().ends_with("/cache: the cache gives no answer within 0.2 s"), "{error}");
}

#[test]
fn leftovers_of_killed_builds_go_once_they_are_a_day_old() {
    let bench = Bench::new();
    let (_, blob) = bench.entry("cicc", b"x", 0);
    let dir = bench.at("cas", &blob.sha256).parent().unwrap().to_path_buf();
    for (name, hours) in [(".tmp-old", 30), (".tmp-new", 1)] {
        fs::write(&dir.join(name), b"half").unwrap();
        fs::set_modified(&dir.join(name), SystemTime::now() - Duration::from_secs(hours * 3600)).unwrap();
    }
    assert_eq!(bench.upkeep().stats().unwrap().temporary.count, 2);
    let evicted = bench.upkeep().evict(Bounds { size: Some(1 << 30), age: None }).unwrap();
    assert_eq!(evicted.leftovers, Amount { count: 1, bytes: 4 });
    assert!(dir.join(".tmp-new").exists() && !dir.join(".tmp-old").exists());
}

#[test]
fn stats_count_kinds_ages_and_what_is_left_over() {
    let bench = Bench::new();
    bench.entry("cicc", &noise(1, 100), 0);
    bench.entry("cicc", &noise(2, 100), 48);
    let (key, blob) = bench.entry("ptxas", &noise(3, 100), 24 * 40);
    let stats = bench.upkeep().stats().unwrap();
    assert_eq!((stats.entries, stats.blobs.count, stats.kinds["cicc"].count), (3, 3, 2));
    let ages: Vec<(&str, usize)> = stats.ages.iter().map(|(age, a)| (age.as_str(), a.count)).collect();
    assert_eq!(ages, [("0 to 1 days", 1), ("1 to 7 days", 1), ("over 30 days", 1)]);
    assert_eq!(stats.unreferenced, Amount::default());
    fs::remove_file(&bench.at("ac", &key)).unwrap();
    let stats = bench.upkeep().stats().unwrap();
    assert_eq!(stats.unreferenced.count, 1);
    assert!(stats.text().contains("no finished job refers to: 1,"), "{}", stats.text());
    bench.upkeep().evict(Bounds { size: None, age: Some(Duration::from_secs(3600 * 24 * 7)) }).unwrap();
    assert!(!bench.at("cas", &blob.sha256).exists());
}

#[test]
fn damage_of_every_kind_is_found_removed_and_told() {
    let bench = Bench::new();
    let (_, whole) = bench.entry("cicc", b"whole", 1);
    let (_, damaged) = bench.entry("cicc", b"damaged", 1);
    let (garbage, _) = bench.entry("host", b"fine", 1);
    let upkeep = bench.upkeep();
    assert!(upkeep.verify().unwrap().failure().is_none());
    // Whole by itself, but not the bytes of this name.
    fs::copy(&bench.at("cas", &whole.sha256), &bench.at("cas", &damaged.sha256)).unwrap();
    fs::write(&bench.at("ac", &garbage), b"{").unwrap();
    let verdict = upkeep.verify().unwrap();
    let found: BTreeSet<&Path> = verdict.damaged.iter().map(|d| d.path.as_path()).collect();
    let expected = [bench.at("cas", &damaged.sha256), bench.at("ac", &garbage)];
    assert_eq!(found, expected.iter().map(PathBuf::as_path).collect());
    assert!(expected.iter().all(|path| !path.exists()));
    assert_eq!(verdict.failure().unwrap().class, Class::Integrity);
    let again = upkeep.verify().unwrap();
    assert!(again.failure().is_none(), "{}", again.text());
}

#[test]
fn places_that_hold_no_cache_are_told_apart_and_left_alone() {
    let bench = Bench::new();
    let root = bench.home.path().join("cache");
    let upkeep = bench.upkeep();
    // None at all is an empty one.
    assert_eq!(upkeep.stats().unwrap().entries, 0);
    assert!(upkeep.clear().unwrap().text().contains("nothing to remove"));
    assert!(!upkeep.evict(Bounds { size: Some(0), age: None }).unwrap().is_notable());
    let all = || {
        [
            upkeep.stats().err(),
            upkeep.verify().err(),
            upkeep.clear().err(),
            upkeep.evict(Bounds::default()).err(),
        ]
    };
    let refused = |part: &str| {
        for error in all() {
            let error = error.unwrap();
            assert_eq!(class(&error), Class::Config);
            assert!(error.to_string().contains(part), "{error}");
        }
    };
    fs::write(&root, b"precious").unwrap();
    refused("cache: is a file");
    assert_eq!(fs::read(&root).unwrap(), b"precious");
    fs::remove_file(&root).unwrap();
    fs::symlink(Path::new("/nowhere/at/all"), &root).unwrap();
    refused("leads to no directory");
    fs::remove_file(&root).unwrap();
    bench.entry("cicc", b"x", 1);
    fs::write(&root.join("cas/zz"), b"").unwrap();
    fs::remove_dir(&root.join("ac")).unwrap();
    fs::write(&root.join("ac"), b"").unwrap();
    refused("ac: is a file");
}

#[test]
fn clear_takes_all_or_refuses() {
    let bench = Bench::new();
    let entry = bench.entry("cicc", b"x", 0);
    let (upkeep, root) = (bench.upkeep(), bench.home.path().join("cache"));
    for foreign in ["notes.txt", "ac/notes.txt", "cas/ab/notes.txt"] {
        fs::write(&root.join(foreign), b"precious").unwrap();
        let error = upkeep.clear().unwrap_err();
        assert!(error.to_string().contains("notes.txt"), "{error}");
        assert_eq!(upkeep.stats().unwrap().foreign, [root.join(foreign)]);
        upkeep.evict(Bounds { size: Some(1 << 30), age: None }).unwrap();
        assert_eq!(bench.there(&entry), (true, true));
        fs::remove_file(&root.join(foreign)).unwrap();
    }
    fs::write(&bench.home.path().join("history.json"), b"{}").unwrap();
    assert_eq!(upkeep.clear().unwrap().removed.count, 2);
    assert_eq!(fs::list(&root).unwrap(), [root.join("lock")]);
    assert!(bench.home.path().join("history.json").exists());
}

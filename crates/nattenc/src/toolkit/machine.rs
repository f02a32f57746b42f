//! What this process may use of the machine: memory and CPUs, by the limits that bind it and not by what
//! the host has. Control groups of both versions are read, with every group above the own one.

use crate::execute::process;
use crate::fs;
use std::path::{Path, PathBuf};

/// One bound and where it comes from.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Limit<T> {
    /// How much.
    pub value: T,
    /// The file that says so.
    pub source: String,
}

/// Memory that can be used now, bytes: the smallest of all bounds, and all of them.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Memory {
    /// What the host has.
    pub total: u64,
    /// What can be used.
    pub available: Limit<u64>,
    /// Every finite bound, its use subtracted.
    pub bounds: Vec<Limit<u64>>,
}

/// CPUs that can be used: the smallest of all bounds, and all of them. At least 1.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Cpus {
    /// What can be used.
    pub available: Limit<u32>,
    /// Every bound.
    pub bounds: Vec<Limit<u32>>,
}

/// v1 writes "no limit" as the largest page count: nothing real is as large.
const UNLIMITED: u64 = 1 << 60;

fn text(path: &Path) -> Option<String> {
    fs::read_if_exists(path).ok().flatten().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

fn value(path: &Path) -> Option<u64> {
    text(path)?.trim().parse().ok()
}

/// The value after a word at the start of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name).filter(|rest| rest.starts_with([':', ' ', '\t'])))?;
    line.trim_start_matches(':').split_whitespace().next()?.parse().ok()
}

/// The directories of this process's group in the hierarchy of `controller` (v2: ""), the own one first.
fn groups(root: &Path, controller: &str) -> Vec<PathBuf> {
    let Some(own) = text(&root.join("proc/self/cgroup")) else { return Vec::new() };
    let path = own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (id, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let mine = if controller.is_empty() {
            id == "0" && controllers.is_empty()
        } else {
            controllers.split(',').any(|c| c == controller)
        };
        mine.then(|| path.to_owned())
    });
    let Some(path) = path else { return Vec::new() };
    // Where that hierarchy is mounted, and which part of it: a container sees a subtree as the whole.
    let mounts = text(&root.join("proc/self/mountinfo")).unwrap_or_default();
    let mount = mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut kind = right.split(' ');
        let version = kind.next()?;
        let options = kind.nth(1)?;
        let mine = if controller.is_empty() {
            version == "cgroup2"
        } else {
            version == "cgroup" && options.split(',').any(|o| o == controller)
        };
        let mut fields = left.split(' ').skip(3);
        mine.then(|| Some((fields.next()?.to_owned(), fields.next()?.to_owned()))).flatten()
    });
    let fallback = if controller.is_empty() {
        "/sys/fs/cgroup".to_owned()
    } else {
        format!("/sys/fs/cgroup/{controller}")
    };
    let (subtree, point) = mount.unwrap_or(("/".to_owned(), fallback));
    let relative = path.strip_prefix(subtree.trim_end_matches('/')).unwrap_or("/").trim_start_matches('/');
    let top = root.join(point.trim_start_matches('/'));
    let own = top.join(relative);
    own.ancestors().take_while(|dir| dir.starts_with(&top)).map(Path::to_path_buf).collect()
}

/// How a file is called in messages: without the sysroot.
fn named(root: &Path, path: &Path) -> String {
    format!("/{}", path.strip_prefix(root).unwrap_or(path).display().to_string().trim_start_matches('/'))
}

/// Memory of the machine under `root` ("/" but in tests). What a group has in reclaimable file pages is free.
pub fn memory(root: &Path) -> Memory {
    let info = text(&root.join("proc/meminfo")).unwrap_or_default();
    let kib = |name: &str| field(&info, name).map(|kib| kib * 1024);
    let total = kib("MemTotal").unwrap_or(0);
    let mut bounds = Vec::new();
    if let Some(available) = kib("MemAvailable").or_else(|| kib("MemFree")) {
        bounds.push(Limit { value: available, source: "/proc/meminfo".to_owned() });
    }
    for (controller, limit, used, cache) in [
        ("", "memory.max", "memory.current", "inactive_file"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ] {
        for group in groups(root, controller) {
            let Some(max) = value(&group.join(limit)).filter(|max| *max < UNLIMITED) else { continue };
            let used = value(&group.join(used)).unwrap_or(0);
            let cache = text(&group.join("memory.stat")).and_then(|stat| field(&stat, cache)).unwrap_or(0);
            let free = max.saturating_sub(used.saturating_sub(cache));
            bounds.push(Limit { value: free, source: named(root, &group.join(limit)) });
        }
    }
    let available = bounds.iter().min_by_key(|bound| bound.value).cloned();
    let available = available.unwrap_or(Limit { value: 0, source: "nothing says".to_owned() });
    Memory { total, available, bounds }
}

/// `0-3,8` as a count.
fn count(list: &str) -> Option<u32> {
    let mut all = 0;
    for part in list.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        all += last.checked_sub(first)? + 1;
    }
    (all > 0).then_some(all)
}

/// CPUs of the machine under `root`: the affinity mask and every quota, rounded up.
pub fn cpus(root: &Path) -> Cpus {
    let mut bounds = Vec::new();
    let status = text(&root.join("proc/self/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).and_then(count);
    if let Some(value) = mask {
        bounds.push(Limit { value, source: "affinity".to_owned() });
    }
    let whole = |quota: u64, period: u64| {
        (period > 0).then(|| u32::try_from(quota.div_ceil(period)).unwrap_or(u32::MAX).max(1))
    };
    for group in groups(root, "") {
        let file = group.join("cpu.max");
        let quota = text(&file).and_then(|text| {
            let (quota, period) = text.trim().split_once(' ')?;
            whole(quota.parse().ok()?, period.parse().ok()?)
        });
        bounds.extend(quota.map(|value| Limit { value, source: named(root, &file) }));
    }
    for group in groups(root, "cpu") {
        let file = group.join("cpu.cfs_quota_us");
        // -1 stands for no quota, and does not parse as unsigned.
        let quota = value(&file).zip(value(&group.join("cpu.cfs_period_us"))).and_then(|(q, p)| whole(q, p));
        bounds.extend(quota.map(|value| Limit { value, source: named(root, &file) }));
    }
    let available = bounds.iter().min_by_key(|bound| bound.value).cloned();
    Cpus { available: available.unwrap_or(Limit { value: 1, source: "nothing says".to_owned() }), bounds }
}

/// Free bytes for this user on the file system of `path`, or of the nearest directory above that exists.
pub fn free_space(path: &Path, search: &str) -> Option<u64> {
    let existing = path.ancestors().find(|dir| dir.is_dir())?;
    let argv =
        ["df", "-P", "-k"].map(str::to_owned).into_iter().chain([existing.display().to_string()]).collect();
    let env = [("PATH".to_owned(), search.to_owned()), ("LC_ALL".to_owned(), "C".to_owned())].into();
    let printed = process::capture(&process::CommandLine { argv, env, cwd: PathBuf::from("/") }).ok()?;
    let kib: u64 = printed.stdout.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// What it is about, files of the sysroot, the result and its source.
    type Row<'a, T> = (&'a str, &'a [(&'a str, &'a str)], T, &'a str);

    /// A sysroot of these files.
    fn sysroot(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let base = [
            ("proc/meminfo", "MemTotal:       67108864 kB\nMemFree:  1 kB\nMemAvailable:   33554432 kB\n"),
            ("proc/self/status", "Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t0-7\n"),
        ];
        for (path, text) in base.iter().chain(files) {
            fs::write(&dir.path().join(path), text.as_bytes()).unwrap();
        }
        dir
    }

    #[test]
    fn the_smallest_limit_on_the_path_of_groups_wins() {
        const V2: (&str, &str) = ("proc/self/cgroup", "0::/a/b\n");
        const MOUNT2: (&str, &str) =
            ("proc/self/mountinfo", "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        const V1: (&str, &str) = ("proc/self/cgroup", "4:memory:/a/b\n3:cpu,cpuacct:/a\n0::/\n");
        const UNLIMITED_V1: &str = "9223372036854771712\n";
        let rows: &[Row<'_, u64>] = &[
            ("no groups", &[], 32 * GIB, "/proc/meminfo"),
            (
                "a limit above the own group",
                &[
                    V2,
                    ("sys/fs/cgroup/a/memory.max", "8589934592\n"),
                    ("sys/fs/cgroup/a/b/memory.max", "max\n"),
                ],
                8 * GIB,
                "/sys/fs/cgroup/a/memory.max",
            ),
            (
                "current use is subtracted, reclaimable pages are not",
                &[
                    V2,
                    MOUNT2,
                    ("sys/fs/cgroup/a/b/memory.max", "8589934592\n"),
                    ("sys/fs/cgroup/a/b/memory.current", "3221225472\n"),
                    ("sys/fs/cgroup/a/b/memory.stat", "anon 1\ninactive_file 1073741824\n"),
                ],
                6 * GIB,
                "/sys/fs/cgroup/a/b/memory.max",
            ),
            (
                "a group that is over its limit",
                &[V2, ("sys/fs/cgroup/a/memory.max", "1\n"), ("sys/fs/cgroup/a/memory.current", "5\n")],
                0,
                "/sys/fs/cgroup/a/memory.max",
            ),
            (
                "v1 without a limit",
                &[V1, ("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", UNLIMITED_V1)],
                32 * GIB,
                "/proc/meminfo",
            ),
            (
                "v1 with a limit above",
                &[
                    V1,
                    ("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", UNLIMITED_V1),
                    ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "4294967296\n"),
                    ("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "1073741824\n"),
                    ("sys/fs/cgroup/memory/a/memory.stat", "inactive_file 7\ntotal_inactive_file 0\n"),
                ],
                3 * GIB,
                "/sys/fs/cgroup/memory/a/memory.limit_in_bytes",
            ),
            (
                "a container that sees its own subtree",
                &[
                    ("proc/self/cgroup", "4:memory:/docker/123\n"),
                    (
                        "proc/self/mountinfo",
                        "35 31 0:32 /docker/123 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
                    ),
                    ("sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n"),
                ],
                2 * GIB,
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            ),
            (
                "a limit above what the host has",
                &[V2, ("sys/fs/cgroup/a/memory.max", "137438953472\n")],
                32 * GIB,
                "/proc/meminfo",
            ),
        ];
        for (what, files, expected, source) in rows {
            let root = sysroot(files);
            let memory = memory(root.path());
            assert_eq!(
                (memory.available.value, memory.available.source.as_str()),
                (*expected, *source),
                "{what}"
            );
            assert_eq!(memory.total, 64 * GIB);
        }
    }

    #[test]
    fn cpus_are_the_affinity_mask_and_the_quotas() {
        let rows: &[Row<'_, u32>] = &[
            ("mask alone", &[], 8, "affinity"),
            ("two of many", &[("proc/self/status", "Cpus_allowed_list:\t0,2\n")], 2, "affinity"),
            (
                "a quota above the own group, rounded up",
                &[
                    ("proc/self/cgroup", "0::/a/b\n"),
                    ("sys/fs/cgroup/a/cpu.max", "250000 100000\n"),
                    ("sys/fs/cgroup/a/b/cpu.max", "max 100000\n"),
                ],
                3,
                "/sys/fs/cgroup/a/cpu.max",
            ),
            (
                "less than one CPU is one",
                &[("proc/self/cgroup", "0::/a\n"), ("sys/fs/cgroup/a/cpu.max", "10000 100000\n")],
                1,
                "/sys/fs/cgroup/a/cpu.max",
            ),
            (
                "v1",
                &[
                    ("proc/self/cgroup", "3:cpu,cpuacct:/a\n"),
                    ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
                    ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
                    ("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "400000\n"),
                    ("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n"),
                ],
                4,
                "/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us",
            ),
        ];
        for (what, files, expected, source) in rows {
            let root = sysroot(files);
            let cpus = cpus(root.path());
            assert_eq!(
                (cpus.available.value, cpus.available.source.as_str()),
                (*expected, *source),
                "{what}"
            );
        }
        let empty = tempfile::tempdir().unwrap();
        assert_eq!(cpus(empty.path()).available.value, 1);
        for (list, expected) in [("0-3,8", Some(5)), ("7", Some(1)), ("", None), ("3-1", None), ("x", None)] {
            assert_eq!(count(list), expected, "{list}");
        }
    }

    #[test]
    fn this_machine_has_memory_cpus_and_space() {
        let (memory, cpus) = (memory(Path::new("/")), cpus(Path::new("/")));
        assert!(memory.available.value > 0 && memory.available.value <= memory.total, "{memory:?}");
        assert!(cpus.available.value >= 1, "{cpus:?}");
        assert!(free_space(Path::new("/tmp/not/there/yet"), "/usr/bin:/bin").is_some_and(|bytes| bytes > 0));
    }
}

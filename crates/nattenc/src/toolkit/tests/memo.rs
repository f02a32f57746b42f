//! What is remembered of an nvcc, and when it is asked again.

use super::*;

/// The fake nvcc of `home` becomes a program whose bytes hold `banner`, and that leaves every answer to the script.
fn program(world: &World, home: &Path, banner: &str) {
    let (nvcc, script) = (home.join("bin/nvcc"), home.join("bin/answers"));
    if !script.exists() {
        fs::rename(&nvcc, &script).unwrap();
    }
    let text = format!(
        "#include <unistd.h>\nvolatile const char banner[] = \"{banner}\\n\";\n\
         int main(int, char **argv) {{ return execv(\"{}\", argv) + banner[0]; }}\n",
        script.display()
    );
    let source = world.path("nvcc.cpp");
    fs::write(&source, text.as_bytes()).unwrap();
    let argv = ["g++", &source.display().to_string(), "-o", &nvcc.display().to_string()].map(str::to_owned);
    let system = Surroundings { path: "/usr/local/bin:/usr/bin:/bin".to_owned(), ..world.around.clone() };
    let made = process::capture(&system.command(argv.into(), Path::new("/"))).unwrap();
    assert!(made.success(), "{}", made.output);
}

/// How often the nvcc of `home` runs when a build that starts now looks at it, once the toolkit was described.
fn asked(world: &World, home: &Path) -> usize {
    let store = world.path("store");
    let memo = Memo::open(&store);
    let before = calls(home, "nvcc ");
    let toolkit = at(home, "CUDA_HOME", &world.around, &memo).unwrap();
    assert_eq!(toolkit.version, "12.8.93");
    memo.save().unwrap();
    calls(home, "nvcc ") - before
}

#[test]
fn an_nvcc_is_asked_again_where_anything_that_decides_its_answers_changed() {
    let mut world = World::new();
    let home = world.make("cuda", "12.8", "12.8.93");
    let banner = "Cuda compilation tools, release 12.8, V12.8.93";
    program(&world, &home, banner);
    assert_eq!([asked(&world, &home), asked(&world, &home)], [3, 0]);
    fs::write(&home.join("bin/nvcc.profile"), b"TOP = $(_HERE_)/..\n").unwrap();
    assert_eq!([asked(&world, &home), asked(&world, &home)], [3, 0], "its profile");
    fs::create_dir(&home.join("targets")).unwrap();
    assert_eq!([asked(&world, &home), asked(&world, &home)], [3, 0], "a directory beside it");
    world.around.path = format!("{}:/sbin", world.around.path);
    assert_eq!([asked(&world, &home), asked(&world, &home)], [3, 0], "PATH");
    program(&world, &home, &format!("{banner}\\n another program"));
    assert_eq!([asked(&world, &home), asked(&world, &home)], [3, 0], "itself");

    let remembered = at(&home, "CUDA_HOME", &world.around, &Memo::open(&world.path("store"))).unwrap();
    let described = at(&home, "CUDA_HOME", &world.around, &Plain).unwrap();
    assert_eq!(format!("{remembered:?}"), format!("{described:?}"));
    // The rest of the toolkit is looked at each time.
    fs::remove_file(&home.join("bin/ptxas")).unwrap();
    let error = at(&home, "CUDA_HOME", &world.around, &Memo::open(&world.path("store"))).unwrap_err();
    assert!(error.to_string().contains("ptxas is missing from"), "{error}");
}

#[test]
fn a_wrapper_is_asked_each_time() {
    let world = World::new();
    let home = world.make("cuda", "12.8", "12.8.93");
    assert_eq!([asked(&world, &home), asked(&world, &home)], [3, 3], "a script");
    for banner in ["Cuda compilation tools, release 12.6, V12.6.85", "a compiler cache"] {
        program(&world, &home, banner);
        assert_eq!([asked(&world, &home), asked(&world, &home)], [3, 3], "{banner}");
    }
    // One that lies elsewhere and starts this one.
    let banner = "Cuda compilation tools, release 12.8, V12.8.93";
    program(&world, &home, banner);
    let bin = world.path("wrapped/bin");
    fs::create_dir(&bin).unwrap();
    world.script(&bin.join("nvcc"), &format!("#!/bin/sh\nexec {}/bin/nvcc \"$@\"\n", home.display()));
    let memo = Memo::open(&world.path("store"));
    for _ in 0..2 {
        let before = calls(&home, "nvcc ");
        let toolkit = at(&world.path("wrapped"), "CUDA_HOME", &world.around, &memo).unwrap();
        assert_eq!((toolkit.home, calls(&home, "nvcc ") - before), (home.clone(), 3));
    }
}

#[test]
fn the_doctor_asks_each_time() {
    let mut world = World::new();
    let home = world.make("cuda", "12.8", "12.8.93");
    program(&world, &home, "Cuda compilation tools, release 12.8, V12.8.93");
    world.around.cuda_home = Some(home.display().to_string());
    assert_eq!([asked(&world, &home), asked(&world, &home)], [3, 0]);
    let memo = Memo::open(&world.path("store"));
    let before = calls(&home, "nvcc ");
    let digests = Asking(&memo);
    let report = asking(&world, "cu128", None, &unavailable, |request| {
        doctor(&Request { digests: &digests, ..*request }, &[], Path::new("/"))
    });
    assert!(report.healthy());
    assert_eq!(calls(&home, "nvcc ") - before, 3);
}

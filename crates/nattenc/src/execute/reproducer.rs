//! What is left of a compiler that crashed: a script that runs the same command, in the same environment, on
//! copies of its inputs. It needs neither nattenc nor the build's scratch directories.

use super::Setting;
use super::process::{CommandLine, quote};
use crate::fs;
use crate::graph::Job;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Writes the script below `logs`, with the inputs beside it, and returns its path. `command` is what crashed,
/// in a scratch directory that still holds its inputs.
pub(super) fn write(
    job: &Job,
    command: &CommandLine,
    how: &str,
    setting: &Setting<'_>,
) -> anyhow::Result<PathBuf> {
    let [script, inputs] = places(job, setting);
    fs::remove_dir(&inputs)?;
    fs::create_dir(&inputs)?;
    for input in &job.inputs {
        fs::copy(&command.cwd.join(&input.name), &inputs.join(&input.name))?;
    }
    fs::write(&script, text(job, command, how, setting, &inputs).as_bytes())?;
    fs::set_mode(&script, 0o755)?;
    Ok(script)
}

/// Takes away what an earlier crash of a job left that has now ended well.
pub(super) fn remove(job: &Job, setting: &Setting<'_>) -> anyhow::Result<()> {
    let [script, inputs] = places(job, setting);
    fs::remove_file(&script)?;
    fs::remove_dir(&inputs)
}

/// Where the script of a job is, and its inputs.
fn places(job: &Job, setting: &Setting<'_>) -> [PathBuf; 2] {
    ["sh", "inputs"].map(|end| setting.logs.join(format!("{}.{}.{end}", job.label, job.kind.word())))
}

fn text(job: &Job, command: &CommandLine, how: &str, setting: &Setting<'_>, inputs: &Path) -> String {
    let name = |path: &Path| quote(&path.file_name().unwrap_or_default().to_string_lossy());
    let mut text = format!(
        "#!/bin/sh\n\
         # {} {}: {how}; nattenc {}.\n\
         # Runs the command again, on copies of its inputs, in a new directory, and ends as it ends.\n\
         set -eu\n\
         here=$(cd \"$(dirname \"$0\")\" && pwd)\n\
         dir=$(mktemp -d)\n\
         cp -R \"$here\"/{}/. \"$dir\"\n",
        job.kind.word(),
        job.label,
        env!("CARGO_PKG_VERSION"),
        name(inputs),
    );
    for (tree, (root, digest)) in &setting.trees {
        let link = tree.link();
        let below = format!("{link}/");
        if !job.trees.contains(tree) && !command.argv.iter().any(|word| word.contains(&below)) {
            continue;
        }
        let variable = link.to_uppercase();
        let _ = write!(
            text,
            "# {digest}\n\
             {variable}=${{{variable}:-{}}}\n\
             [ -d \"${variable}\" ] || {{ echo \"${variable} is gone: set {variable} to where it is now\" >&2; exit 127; }}\n\
             ln -s \"${variable}\" \"$dir/{link}\"\n",
            quote(&root.display().to_string()),
        );
    }
    text += "cd \"$dir\"\nexec env -i";
    for (key, value) in command.env.iter().filter(|(key, _)| *key != "TMPDIR") {
        let _ = write!(text, " {}", quote(&format!("{key}={value}")));
    }
    text += " TMPDIR=\"$dir\"";
    for word in &command.argv {
        let _ = write!(text, " \\\n  {}", quote(word));
    }
    text + "\n"
}

//! Makes a new cluster: generates its password and runs initdb, as the right user and in one step for onlookers.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Stdio;

use crate::binaries::Version;
use crate::cluster::{Cluster, SUPERUSER, last_lines, remove_folder};
use crate::error::{Context, Error};
use crate::options::{Auth, Lifetime};

/// Returns the superuser's generated password, which is also in the cluster's password file.
pub(crate) fn run(cluster: &Cluster) -> Result<String, Error> {
    let password = generate_password().context(|| "generate a password".to_owned())?;
    // initdb makes PG_VERSION early, and what it did not finish must not look like a cluster: it works beside the
    // final place.
    let fresh = cluster.dir.join("data.new");
    remove_folder(&fresh).context(|| format!("remove {}", fresh.display()))?;
    fs::create_dir(&fresh).context(|| format!("create {}", fresh.display()))?;
    let password_file = cluster.password_file();
    write_private(&password_file, &password).context(|| format!("write {}", password_file.display()))?;
    // The server's user cannot read ours.
    let lent = cluster.dir.join("password.initdb");
    write_private(&lent, &password).context(|| format!("write {}", lent.display()))?;
    if let Some(user) = &cluster.run_as {
        user.give(&fresh)?;
        user.give(&lent)?;
    }

    let auth = match cluster.options.auth {
        Auth::Scram => "scram-sha-256",
        Auth::Password => "password",
    };
    let mut command = cluster.server_command("initdb")?;
    command.arg("--pgdata").arg(&fresh).arg("--pwfile").arg(&lent);
    command.args(["--username", SUPERUSER, "--auth", auth, "--encoding=UTF8"]);
    command.args(locale_arguments(cluster.options.binaries.version()));
    if cluster.options.lifetime == Lifetime::ThrowAway {
        command.arg("--no-sync");
    }
    let output = command.stdin(Stdio::null()).output();
    let _ = fs::remove_file(&lent);
    let output = output.context(|| "run initdb".to_owned())?;
    if !output.status.success() {
        let _ = remove_folder(&fresh);
        let text = [output.stdout, output.stderr].concat();
        return Err(Error::Initdb {
            dir: cluster.dir.clone(),
            output: last_lines(&String::from_utf8_lossy(&text)),
        });
    }
    // Fails on a folder of somebody else's that holds anything.
    fs::rename(&fresh, &cluster.data).context(|| format!("move {} into place", fresh.display()))?;
    Ok(password)
}

/// The same rules for letters wherever they can be had. From 17 on the server brings C.UTF-8 itself; before, only Linux
/// has it.
fn locale_arguments(version: &Version) -> &'static [&'static str] {
    if version.major() >= 17 {
        &["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"]
    } else if cfg!(target_os = "linux") {
        &["--locale=C.UTF-8"]
    } else {
        &["--locale=C"]
    }
}

fn generate_password() -> io::Result<String> {
    let mut bytes = [0; 24];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn write_private(path: &Path, text: &str) -> io::Result<()> {
    // An older file would keep its mode and owner.
    match fs::remove_file(path) {
        Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(err),
        _ => {}
    }
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?.write_all(text.as_bytes())
}

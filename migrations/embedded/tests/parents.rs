//! The server ends with the process that started it, however that ends.

use std::path::Path;
use std::process::{Command, Stdio};

use tidegate_embedded::{Binaries, Cluster, Lifetime, Options};

use crate::on_each_version;
use crate::roles::{Other, folder_of_role, is_alive, open_folder, say, terminate, wait_for};

on_each_version!(
    a_killed_parent_takes_its_server_along,
    a_killed_parent_of_a_throw_away_cluster_leaves_nothing,
    an_interrupt_from_the_terminal_stops_the_server,
);

/// The parent's part: starts a server, tells its process id and waits to be killed.
fn run_a_server_for_ever(major: u32, folder: &Path, lifetime: Lifetime) -> ! {
    let mut options = Options::new(Binaries::find_version(major).unwrap(), folder.join("cluster"));
    options.lifetime = lifetime;
    let mut cluster = Cluster::init(options).unwrap();
    cluster.start().unwrap();
    // A child of ours that outlives us must not hold what tells the watchdog of our end.
    let mut sleeper =
        Command::new("sleep").arg("300").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    say(cluster.pid().unwrap());
    say(sleeper.id());
    let _ = sleeper.wait();
    loop {
        std::thread::park();
    }
}

fn a_killed_parent_takes_its_server_along(major: u32) {
    if let Some(folder) = folder_of_role() {
        run_a_server_for_ever(major, &folder, Lifetime::Keep);
    }
    let folder = open_folder();
    let test = format!("parents::a_killed_parent_takes_its_server_along::pg{major}");
    let mut parent = Other::spawn(&test, folder.path(), &[]);
    let server = parent.hear().parse().unwrap();
    assert!(is_alive(server));
    let sleeper = parent.hear().parse().unwrap();
    parent.process.kill().unwrap();
    wait_for("the server's end", || !is_alive(server));
    assert!(is_alive(sleeper));
    terminate(sleeper);

    // The data stays, and was written out: a shutdown, no crash.
    let options = Options::new(Binaries::find_version(major).unwrap(), folder.path().join("cluster"));
    let mut cluster = Cluster::open(options).unwrap();
    assert!(cluster.log_tail().contains("database system is shut down"), "{}", cluster.log_tail());
    cluster.start().unwrap();
    assert!(cluster.is_running());
}

fn a_killed_parent_of_a_throw_away_cluster_leaves_nothing(major: u32) {
    if let Some(folder) = folder_of_role() {
        run_a_server_for_ever(major, &folder, Lifetime::ThrowAway);
    }
    let folder = open_folder();
    let test = format!("parents::a_killed_parent_of_a_throw_away_cluster_leaves_nothing::pg{major}");
    let mut parent = Other::spawn(&test, folder.path(), &[]);
    let server = parent.hear().parse().unwrap();
    let sleeper = parent.hear().parse().unwrap();
    parent.process.kill().unwrap();
    wait_for("the server's end", || !is_alive(server));
    assert!(is_alive(sleeper));
    terminate(sleeper);
    wait_for("the folder's removal", || !folder.path().join("cluster").exists());
}

fn an_interrupt_from_the_terminal_stops_the_server(major: u32) {
    if let Some(folder) = folder_of_role() {
        run_a_server_for_ever(major, &folder, Lifetime::Keep);
    }
    let folder = open_folder();
    let test = format!("parents::an_interrupt_from_the_terminal_stops_the_server::pg{major}");
    let mut parent = Other::spawn(&test, folder.path(), &[]);
    let server = parent.hear().parse().unwrap();
    parent.hear();
    // Ends the parent, which has no handler, and its other child; it would end a watchdog of the same group.
    parent.signal_group(libc::SIGINT);
    wait_for("the server's end", || !is_alive(server));
}

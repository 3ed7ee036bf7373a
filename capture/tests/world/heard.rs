//! What the process says: shown with a failing test, and kept for a test that looks for what must not be said (Q1).

use std::io::{self, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::dynamic_filter_fn;
use tracing_subscriber::fmt::layer;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

static LISTENING: AtomicBool = AtomicBool::new(false);
static HEARD: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// Once per process; later calls change nothing.
pub fn install() {
    let shown = layer().with_test_writer().with_filter(LevelFilter::INFO);
    let kept = layer()
        .with_ansi(false)
        .with_writer(|| Ear)
        .with_filter(dynamic_filter_fn(|_, _| LISTENING.load(Ordering::Relaxed)));
    let _ = tracing_subscriber::registry().with(shown).with(kept).try_init();
}

/// From now on everything is kept, of every crate and down to the finest level.
pub fn listen() {
    LISTENING.store(true, Ordering::Relaxed);
}

/// All that was said since.
pub fn heard() -> String {
    String::from_utf8_lossy(&HEARD.lock().expect("unpoisoned")).into_owned()
}

struct Ear;

impl Write for Ear {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        HEARD.lock().expect("unpoisoned").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

//! What the code under test logs on this thread while this lives.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use tracing::subscriber::DefaultGuard;

pub struct Said {
    text: Arc<Mutex<Vec<u8>>>,
    _guard: DefaultGuard,
}

struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("one writer").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Said {
    pub fn listen() -> Said {
        let text = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&text);
        let subscriber =
            tracing_subscriber::fmt().with_ansi(false).with_writer(move || Sink(Arc::clone(&sink))).finish();
        Said { text, _guard: tracing::subscriber::set_default(subscriber) }
    }

    /// The lines that contain this.
    pub fn lines(&self, part: &str) -> Vec<String> {
        let text = String::from_utf8(self.text.lock().expect("one writer").clone()).expect("text");
        text.lines().filter(|line| line.contains(part)).map(str::to_owned).collect()
    }
}

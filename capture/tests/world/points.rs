//! Fail points belong to the whole process, and so to one test at a time: where tests share a process, those that set one wait
//! for the others, and the others for them.

use super::{Running, World, within};
use std::ops::Deref;
use std::sync::Mutex;
use tidegate_capture::CaptureError;
use tidegate_embedded::testing::{TestContext, TestServer};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, oneshot};

static POINTS: RwLock<()> = RwLock::const_new(());

/// A test's turn with the fail points of this process.
pub enum Turn {
    WithOthers(#[allow(dead_code, reason = "held")] RwLockReadGuard<'static, ()>),
    Alone(#[allow(dead_code, reason = "held")] RwLockWriteGuard<'static, ()>),
    /// Within that of another world of the same test.
    Within,
}

impl Turn {
    pub async fn with_others() -> Turn {
        Turn::WithOthers(POINTS.read().await)
    }
}

/// A world whose test may set fail points; they are gone when it ends.
pub struct Armed(World);

impl TestContext for Armed {
    async fn prepare(server: TestServer) -> Self {
        Armed(World::on(server, Turn::Alone(POINTS.write().await)).await)
    }
}

impl Deref for Armed {
    type Target = World;

    fn deref(&self) -> &World {
        &self.0
    }
}

impl Armed {
    /// Another database on the same server, within this test's turn.
    pub async fn another(&self) -> World {
        World::on(self.server.clone(), Turn::Within).await
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        for name in tidegate_capture::failpoints::ALL {
            fail::remove(*name);
        }
    }
}

/// From now on a worker that comes to this point dies there.
pub fn kill_at(name: &str) {
    fail::cfg(name, "return").expect("fail point");
}

/// Waits for its death, and disarms the point.
pub async fn is_killed(worker: Running, name: &str) {
    let error = worker.ended().await;
    assert!(matches!(error, CaptureError::Killed(point) if point == name), "{name}: {error}");
    fail::remove(name);
}

/// The first worker that comes to a point stops there, as if its process had been stopped.
pub struct Pause {
    name: &'static str,
    reached: oneshot::Receiver<()>,
    release: Option<std::sync::mpsc::Sender<()>>,
}

impl Pause {
    /// The worker must run [apart](World::start_apart): the thread that comes here blocks.
    pub fn at(name: &'static str) -> Pause {
        let (stopped, reached) = oneshot::channel();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let first = Mutex::new(Some((stopped, released)));
        fail::cfg_callback(name, move || {
            let first = first.lock().expect("unpoisoned").take();
            if let Some((stopped, released)) = first {
                let _ = stopped.send(());
                let _ = released.recv();
            }
        })
        .expect("fail point");
        Pause { name, reached, release: Some(release) }
    }

    pub async fn reached(&mut self) {
        within(self.name, &mut self.reached).await.expect("it comes there");
    }

    /// Lets it go on from here, and die when it comes here again.
    pub fn release_into_kill(mut self) {
        kill_at(self.name);
        self.name = "";
        self.release.take();
    }

    /// Lets it go on.
    pub fn release(mut self) {
        self.release.take();
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        self.release.take();
        if !self.name.is_empty() {
            fail::remove(self.name);
        }
    }
}

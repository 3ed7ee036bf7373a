//! Worker and gateway, held up at their named moments: the worker as a stopped thread, as SIGSTOP would leave it; the gateway as a
//! task, while everything else of it goes on.

use super::world::within;
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use tidegate_gateway::failpoints::Hold;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Stops a worker that was started apart whenever it comes to a point, until it is let go or the value is dropped.
pub struct WorkerHold {
    point: &'static str,
    arrivals: UnboundedReceiver<()>,
    /// Held for its drop, too: whoever waits then goes on.
    pass: Option<Sender<()>>,
}

impl WorkerHold {
    pub fn at(point: &'static str) -> WorkerHold {
        let (arrived, arrivals) = unbounded_channel();
        let (pass, passed) = channel();
        let passed = Mutex::new(passed);
        fail::cfg_callback(point, move || {
            let _ = arrived.send(());
            let _ = passed.lock().expect("unpoisoned").recv();
        })
        .expect("a fail point");
        WorkerHold { point, arrivals, pass: Some(pass) }
    }

    /// Waits until it has come there again.
    pub async fn reached(&mut self) {
        within(self.point, self.arrivals.recv()).await.expect("the point is there");
    }

    /// Lets it go: now, or when it comes next.
    pub fn let_one_go(&self) {
        if let Some(pass) = &self.pass {
            let _ = pass.send(());
        }
    }
}

impl Drop for WorkerHold {
    fn drop(&mut self) {
        self.pass = None;
        fail::remove(self.point);
    }
}

/// Holds up whoever comes to a point of a gateway, until the value is dropped.
pub struct GatewayHold(&'static str, Hold);

impl GatewayHold {
    /// Whoever comes to it.
    pub fn at(point: &'static str) -> GatewayHold {
        GatewayHold(point, Hold::at(point))
    }

    /// What is done on behalf of this subject.
    pub fn of(point: &'static str, subject: &str) -> GatewayHold {
        GatewayHold(point, Hold::of(point, subject))
    }

    /// Waits until the next one has come and waits.
    pub async fn reached(&mut self) {
        within(self.0, self.1.reached()).await;
    }
}

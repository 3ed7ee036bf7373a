//! The programs under test, each in a process of its own so that each can be killed alone.

use crate::process::Tidegate;
use crate::stage::{Stage, address};
use anyhow::Context;

/// A worker and a gateway over one database.
pub struct Programs {
    /// The database and its server.
    pub stage: Stage,
    /// The worker.
    pub capture: Tidegate,
    /// The gateway.
    pub gateway: Tidegate,
    /// Where the gateway listens, before and after a restart.
    pub address: String,
}

impl Programs {
    /// Starts both.
    ///
    /// # Errors
    /// When one is not ready in time.
    pub async fn start(stage: Stage) -> anyhow::Result<Programs> {
        let capture = stage.start(&["capture"]).await.context("start capture")?;
        let gateway =
            stage.start(&["gateway", "--listen", "127.0.0.1:0"]).await.context("start the gateway")?;
        let address = address(gateway.ready.url.as_deref().context("the gateway printed no URL")?)?;
        Ok(Programs { stage, capture, gateway, address })
    }

    /// Starts the worker again.
    ///
    /// # Errors
    /// When it is not ready in time.
    pub async fn start_capture(&mut self) -> anyhow::Result<()> {
        self.capture = self.stage.start(&["capture"]).await?;
        Ok(())
    }

    /// Starts the gateway again at the same address.
    ///
    /// # Errors
    /// When it is not ready in time.
    pub async fn start_gateway(&mut self) -> anyhow::Result<()> {
        self.gateway = self.stage.start(&["gateway", "--listen", &self.address.clone()]).await?;
        Ok(())
    }

    /// Shuts PostgreSQL down as a crash would, and starts it again. Worker and gateway must outlive it.
    ///
    /// # Errors
    /// When the server does not come back.
    pub async fn crash_postgres(&mut self) -> anyhow::Result<()> {
        tokio::task::block_in_place(|| self.stage.server.crash_and_restart())
    }
}

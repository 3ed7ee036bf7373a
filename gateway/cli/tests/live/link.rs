//! The network between a gateway and PostgreSQL, in the hands of a test.

use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// What the link does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    /// Carries everything.
    Fair,
    /// Carries nothing of what the server says; it arrives once the weather is fair.
    Silent,
    /// Drops the connection when the server answers: what was asked has happened, and nobody hears of it.
    Lossy,
}

/// A link to a server on this machine.
pub struct Link {
    pub port: u16,
    weather: Arc<watch::Sender<Weather>>,
    /// Connections lost in lossy weather.
    lost: watch::Receiver<u64>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Link {
    pub async fn to(server_port: u16) -> Link {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let weather = Arc::new(watch::channel(Weather::Fair).0);
        let (losses, lost) = watch::channel(0);
        let seen = weather.clone();
        let task = tokio::spawn(async move {
            let mut carried = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(("127.0.0.1", server_port)).await else { continue };
                carried.spawn(carry(client, server, seen.subscribe(), losses.clone()));
            }
        });
        Link { port, weather, lost, task }
    }

    pub fn set(&self, weather: Weather) {
        self.weather.send_replace(weather);
    }

    /// Waits until so many answers were lost.
    pub async fn lost(&self, count: u64) {
        let mut lost = self.lost.clone();
        super::world::within("an answer to be lost", lost.wait_for(|lost| *lost >= count))
            .await
            .expect("a link");
    }
}

async fn carry(
    mut client: TcpStream,
    mut server: TcpStream,
    mut weather: watch::Receiver<Weather>,
    losses: watch::Sender<u64>,
) {
    let (mut from_client, mut from_server) = ([0; 8192], [0; 8192]);
    loop {
        tokio::select! {
            read = client.read(&mut from_client) => match read {
                Ok(1..) if server.write_all(&from_client[..read.unwrap_or(0)]).await.is_ok() => {}
                _ => return,
            },
            read = server.read(&mut from_server) => {
                let Ok(count @ 1..) = read else { return };
                if *weather.borrow() == Weather::Lossy {
                    losses.send_modify(|lost| *lost += 1);
                    return;
                }
                if weather.wait_for(|weather| *weather != Weather::Silent).await.is_err()
                    || client.write_all(&from_server[..count]).await.is_err()
                {
                    return;
                }
            }
        }
    }
}

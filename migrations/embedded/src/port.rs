//! A free loopback port, chosen by the system and, on Linux, kept from everybody else across restarts.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
#[cfg(target_os = "linux")]
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A loopback port set aside for one server.
///
/// On Linux a bound socket that never listens is held for as long as this value lives: PostgreSQL, which sets
/// SO_REUSEADDR too, can listen on the port, while the system gives it to no other socket. So a server
/// that is killed and started again finds its port free and its clients find it at the same address.
/// Elsewhere the port is merely free when chosen.
#[derive(Debug)]
pub(crate) struct PortReservation {
    port: u16,
    #[cfg(target_os = "linux")]
    _socket: OwnedFd,
}

impl PortReservation {
    /// Reserves a port that the system chooses, or exactly the wanted one.
    pub(crate) fn take(wanted: Option<u16>) -> io::Result<Self> {
        // Listening for a moment proves what a bound socket with SO_REUSEADDR would not: nobody serves the port.
        let probe = TcpListener::bind((Ipv4Addr::LOCALHOST, wanted.unwrap_or(0)))?;
        let port = probe.local_addr()?.port();
        drop(probe);
        Ok(Self {
            port,
            #[cfg(target_os = "linux")]
            _socket: bind_without_listening(port)?,
        })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

#[cfg(target_os = "linux")]
fn bind_without_listening(port: u16) -> io::Result<OwnedFd> {
    // SAFETY: a plain call; the result is checked before use.
    let raw = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `raw` is a fresh descriptor that nothing else owns.
    let socket = unsafe { OwnedFd::from_raw_fd(raw) };
    let on: libc::c_int = 1;
    // SAFETY: the pointer and length describe `on`, which outlives the call.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_REUSEADDR,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    if set < 0 {
        return Err(io::Error::last_os_error());
    }
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(Ipv4Addr::LOCALHOST).to_be() },
        sin_zero: [0; 8],
    };
    // SAFETY: the pointer and length describe `address`, which outlives the call.
    let bound = unsafe {
        libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as libc::socklen_t)
    };
    if bound < 0 { Err(io::Error::last_os_error()) } else { Ok(socket) }
}

//! The one place that knows the WebSocket library: frames in, frames out, joined into few writes.

use axum::extract::ws::{CloseFrame, Message, WebSocket};
use bytes::Bytes;
use futures_util::{Sink, Stream};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tidegate_protocol::CloseCode;

/// What came in.
#[derive(Debug)]
pub(super) enum Incoming {
    /// A frame.
    Frame(Bytes),
    /// A text message: this protocol has none.
    Text,
    /// A message so large that it was not read. Nothing comes after it.
    TooLarge,
    /// Nothing is read any more, after a message that was too large.
    Ended,
    /// The other side has closed, or the connection broke.
    Closed,
}

/// A socket that writes what it is fed in one go.
pub(super) trait Transport {
    /// Ready when another frame can be fed.
    fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Gone>>;
    /// Takes a frame; it may stay in memory until [`poll_written`](Self::poll_written).
    fn feed(&mut self, frame: Bytes) -> Result<(), Gone>;
    /// Ready when everything fed was handed to the kernel.
    fn poll_written(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Gone>>;
    /// The next frame of the other side.
    fn poll_incoming(&mut self, context: &mut Context<'_>) -> Poll<Incoming>;
    /// Feeds the closing handshake's first half.
    fn feed_close(&mut self, code: CloseCode) -> Result<(), Gone>;
}

/// The connection is no more.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gone;

/// The library refuses to read a message of more bytes than it was told; everything else means that the connection broke.
fn of_error(error: axum::Error) -> Incoming {
    match error.into_inner().downcast_ref() {
        Some(tungstenite::Error::Capacity(_)) => Incoming::TooLarge,
        _ => Incoming::Closed,
    }
}

impl Transport for WebSocket {
    fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        Pin::new(self).poll_ready(context).map_err(|_| Gone)
    }

    fn feed(&mut self, frame: Bytes) -> Result<(), Gone> {
        Pin::new(self).start_send(Message::Binary(frame)).map_err(|_| Gone)
    }

    fn poll_written(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        Pin::new(self).poll_flush(context).map_err(|_| Gone)
    }

    fn poll_incoming(&mut self, context: &mut Context<'_>) -> Poll<Incoming> {
        loop {
            return Poll::Ready(match ready!(Pin::new(&mut *self).poll_next(context)) {
                Some(Ok(Message::Binary(bytes))) => Incoming::Frame(bytes),
                Some(Ok(Message::Text(_))) => Incoming::Text,
                // The library answers pings itself.
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => continue,
                Some(Err(error)) => of_error(error),
                Some(Ok(Message::Close(_))) => Incoming::Closed,
                None => Incoming::Ended,
            });
        }
    }

    fn feed_close(&mut self, code: CloseCode) -> Result<(), Gone> {
        let frame = CloseFrame { code: code.number(), reason: code.as_str().into() };
        Pin::new(self).start_send(Message::Close(Some(frame))).map_err(|_| Gone)
    }
}

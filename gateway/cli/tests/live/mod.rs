//! Capture and gateway in one process on a fresh database, and clients over real sockets that check everything they are told.

// The same model client that judges the session's property tests judges the running product; those use more of it.
#[path = "../../../src/session/tests/model_client.rs"]
#[allow(dead_code)]
mod model_client;

mod client;
mod hold;
mod judge;
mod link;
mod world;

mod answers;
mod chains;
mod cl05;
mod cursors;
mod gate;
mod grants;
mod history;
mod layouts;
mod overlay;
mod racing;
mod restored;
mod revoked;
mod sessions;
mod socket;
mod two_gateways;
mod values;
mod visibility;
mod writes;

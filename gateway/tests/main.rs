//! The gateway against a real PostgreSQL, 15 and 18.

mod auth;
mod fixture;
mod push;
mod readiness;

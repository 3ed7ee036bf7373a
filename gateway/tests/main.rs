//! The gateway against a real PostgreSQL, 15 and 18.

mod fixture;
mod push;

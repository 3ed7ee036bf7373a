//! Tests over the whole product: the workspace's shape, and capture and gateway end to end.

mod arrows;
mod commands;
mod live;
mod starting;

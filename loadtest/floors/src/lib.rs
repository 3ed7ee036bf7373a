//! The floors and baselines that loadtest compares Tidegate with: small and honest, with the same payload, the same sockets
//! and the same durability, and without what Tidegate promises on top.

pub mod apply;
pub mod copy;
pub mod minimal_trigger;
pub mod pgbench;
pub mod recvlogical;
pub mod relay;
pub mod server;

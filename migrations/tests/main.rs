//! What only a real PostgreSQL can show of the schema and its loader. Each module is one part of the contract.

mod application;
mod definition;
mod drift;
mod fence;
mod fence_order;
mod fence_random;
mod fence_surroundings;
mod loader;
mod notice;
mod refusal;
mod register;
mod replay;
mod stream;

//! What only a real PostgreSQL can show of the schema and its loader. Each module is one part of the contract.

mod application;
mod check;
mod definition;
mod drift;
mod fence;
mod fence_random;
mod fence_surroundings;
mod hostile;
mod keys;
mod killed;
mod loader;
mod notice;
mod places;
mod refusal;
mod register;
mod repair;
mod replay;
mod said;
mod scenario;
mod scenarios;
mod schemas;
mod settings;
mod stream;
mod versions;
mod waiting;
mod wal;

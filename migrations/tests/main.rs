//! What only a real PostgreSQL can show of the schema and its loader. Each module is one part of the contract.

mod loader;

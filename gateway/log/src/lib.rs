//! The log contract, its subscription loop and its adapters.

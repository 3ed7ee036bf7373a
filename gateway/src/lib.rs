//! Hub, sessions, push and HTTP of the Tidegate gateway.

//! The floors and baselines that loadtest compares Tidegate with.

//! The benchmark CLI: will measure any HTTP tunnel or gateway, ours among them.
//!
//! Its crate stands here so that the workspace has its final shape. It depends on none of the
//! programs: it starts them as child processes, so that its own cost and theirs are never mixed.

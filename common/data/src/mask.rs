//! Which tokens are supervised.

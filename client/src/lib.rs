//! lodge-client

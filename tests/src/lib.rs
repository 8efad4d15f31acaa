//! lodge-tests

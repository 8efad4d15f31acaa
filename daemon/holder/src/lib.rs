//! lodge-holder

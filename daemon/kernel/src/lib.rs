//! lodge-kernel

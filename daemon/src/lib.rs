//! lodged

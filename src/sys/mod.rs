//! The ground floor: memory that can be refused. Nothing above it grows a container in any other way.

pub(crate) mod memory;

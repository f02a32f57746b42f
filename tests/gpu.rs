//! Numerics on a device (in work).

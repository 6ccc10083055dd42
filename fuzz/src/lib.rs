//! Fuzz targets for every protocol state machine.

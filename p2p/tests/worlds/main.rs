//! Stores in simulated worlds: hosts that lose power, links that are cut, lose and damage.

mod filing;
mod giving_up;
mod letting_go;
mod passing_on;
mod resuming;
mod scene;
mod updating;

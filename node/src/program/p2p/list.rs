//! Listing objects.

use clap::Args;
use lunette_p2p::Found;
use serde_json::json;

use super::place::{Place, Presence};
use super::run;
use super::serve::say;
use crate::program::failure::Failure;

#[derive(Args, Debug)]
pub(super) struct ListArguments {
    /// How their names begin.
    #[arg(value_name = "BEGINNING", default_value = "")]
    beginning: String,
    #[command(flatten)]
    place: Place,
}

pub(super) fn list(arguments: ListArguments, as_json: bool) -> Result<(), Failure> {
    let plan = arguments.place.plan(&Presence::default())?;
    run(async move || {
        let store = plan.start().await?;
        let found = store.list(&arguments.beginning).await;
        store.close().await;
        let found = found?;
        say(&if as_json {
            let objects: Vec<_> = found.iter().map(object).collect();
            json!({ "objects": objects }).to_string()
        } else {
            table(&found)
        })
    })
}

fn object(found: &Found) -> serde_json::Value {
    let shape = &found.shape;
    json!({ "name": found.name.as_str(), "version": found.version.to_string(),
            "bytes": shape.len_bytes(), "buffers": shape.buffers().len(), "chunks": shape.chunks(),
            "whole": found.whole, "holders": found.holders })
}

fn table(found: &[Found]) -> String {
    let names = found.iter().map(|found| found.name.as_str().len());
    let width = names.max().unwrap_or(0).max("name".len());
    let mut text = format!(
        "{:width$}  {:16}  {:>16}  {:>7}  {:>5}  {:>7}",
        "name", "version", "bytes", "buffers", "whole", "holders"
    );
    for found in found {
        let (name, version) = (found.name.as_str(), found.version.to_string());
        let (len_bytes, buffers) = (found.shape.len_bytes(), found.shape.buffers().len());
        let (whole, holders) = (found.whole, found.holders);
        text += &format!(
            "\n{name:width$}  {version:16}  {len_bytes:>16}  {buffers:>7}  {whole:>5}  {holders:>7}"
        );
    }
    text
}

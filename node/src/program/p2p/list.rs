//! Listing objects.

use clap::Args;
use lunette_p2p::{Found, Layout, Store};
use serde_json::json;

use super::failure::Outcome;
use super::place::{Place, Presence};
use super::serve::say;
use super::{run, tensors};
use crate::program::failure::Failure;

#[derive(Args, Debug)]
pub(super) struct ListArguments {
    /// How their names begin. Of one that is named in full the tensors are listed too.
    #[arg(value_name = "BEGINNING", default_value = "")]
    beginning: String,
    #[command(flatten)]
    place: Place,
}

pub(super) fn list(arguments: ListArguments, as_json: bool) -> Result<(), Failure> {
    let plan = arguments.place.plan(&Presence::default())?;
    run(async move || {
        let store = plan.start().await?;
        let listed = list_all(&store, &arguments.beginning).await;
        store.close().await;
        let (found, layout) = listed?;
        say(&if as_json {
            let objects: Vec<_> = found.iter().map(object).collect();
            match &layout {
                Some(layout) => json!({ "objects": objects, "tensors": tensors::objects(layout) }),
                None => json!({ "objects": objects }),
            }
            .to_string()
        } else {
            let tensors = layout.as_ref().map(tensors::table);
            let tensors = tensors.map_or_else(String::new, |table| format!("\n\n{table}"));
            table(&found) + &tensors
        })
    })
}

/// The objects, and the tensors of one that was named.
async fn list_all(store: &Store, beginning: &str) -> Outcome<(Vec<Found>, Option<Layout>)> {
    let found = store.list(beginning).await?;
    let layout = match &found[..] {
        [only] if only.name.as_str() == beginning => store.layout(only).await?,
        _ => None,
    };
    let layout = layout.filter(|layout| !layout.is_empty());
    Ok((found, layout))
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

//! Offering the tensors of files in buckets.

use std::path::PathBuf;

use clap::Args;
use lunette_p2p::{ObjectName, Offer, OfferOptions, RegisterOptions, Store};
use serde_json::json;

use super::failure::Outcome;
use super::place::Membership;
use super::serve::{addresses, chunk_bytes, ends, say, until_ended};
use super::{files, run, tensors};
use crate::program::failure::Failure;
use crate::program::size::Size;

#[derive(Args, Debug)]
pub(super) struct OfferArguments {
    /// The update's name.
    name: ObjectName,
    /// Safetensors files, whose tensors it has. They are read once.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// About how long buckets are: a tensor that is longer has one of its own. Ranks need memory for a few of them.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = Size::parse)]
    bucket: Size,
    /// Length of their chunks: a power of two.
    #[arg(long, value_name = "SIZE", default_value = "8MiB", value_parser = Size::parse)]
    chunk: Size,
    /// Take the place of whatever has the name: who follows takes this one next.
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    member: Membership,
}

pub(super) fn offer(arguments: OfferArguments, as_json: bool) -> Result<(), Failure> {
    let ends = ends()?;
    let plan = arguments.member.plan()?;
    let options = OfferOptions {
        bucket_bytes: arguments.bucket.0,
        register: RegisterOptions {
            chunk_bytes: chunk_bytes(arguments.chunk)?,
            may_replace: arguments.replace,
        },
    };
    run(async move || {
        let tensors = tensors::of_files(&arguments.files)?;
        let buffers = files::read_all(&arguments.files).await?;
        let store = plan.start().await?;
        let bytes = tensors.iter().filter_map(|tensor| tensor.len_bytes());
        let told = (tensors.len(), bytes.sum());
        let offering = store.offer(&arguments.name, &buffers, tensors, options);
        let offered = offering.await?;
        say_offered(&store, &offered, told, as_json)?;
        until_ended(store, &ends).await;
        Ok(())
    })
}

fn say_offered(
    store: &Store,
    offered: &Offer,
    (tensors, bytes): (usize, u64),
    as_json: bool,
) -> Outcome<()> {
    let addresses = addresses(store);
    let (name, buckets) = (offered.name(), offered.buckets());
    let id = format!("{:016x}", offered.id());
    say(&if as_json {
        json!({ "ready": true, "addresses": addresses, "name": name.as_str(), "update": id,
                "bytes": bytes, "buckets": buckets, "tensors": tensors })
        .to_string()
    } else {
        let addresses = addresses.join(",");
        format!(
            "offering {name}, update {id}: {bytes} bytes of {tensors} tensors in {buckets} \
             buckets, on {addresses}"
        )
    })
}

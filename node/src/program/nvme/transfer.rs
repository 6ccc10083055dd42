//! Bytes of a namespace to a file and back.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::path::PathBuf;

use clap::Args;
use lunette::runtime::arena;
use lunette_nvmeof::RemoteNamespace;

use super::failure::{NvmeFailure, Outcome};
use super::subsystem::{COMMAND_TIMEOUT, SubsystemArguments, connect};
use crate::program::size::Size;

#[derive(Args, Debug)]
pub(super) struct ReadArguments {
    #[command(flatten)]
    subsystem: SubsystemArguments,
    /// First byte: a multiple of a block.
    #[arg(long, default_value_t = 0)]
    offset: u64,
    /// How much: a multiple of a block. Default: up to the end.
    #[arg(long, value_name = "SIZE", value_parser = Size::parse)]
    length: Option<Size>,
    /// Where to. Default: standard output.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(super) struct WriteArguments {
    #[command(flatten)]
    subsystem: SubsystemArguments,
    /// First byte: a multiple of a block.
    #[arg(long, default_value_t = 0)]
    offset: u64,
    /// The file; - is standard input. It is filled up with zeroes to whole blocks.
    #[arg(long, short, value_name = "FILE", default_value = "-")]
    input: PathBuf,
}

/// Splits a range into commands.
fn pieces(namespace: &RemoteNamespace, offset: u64, len: u64) -> Outcome<Vec<(u64, usize)>> {
    let identity = namespace.identity();
    let block_bytes = identity.block_bytes();
    let range = |what| NvmeFailure::Range { what, block_bytes };
    let whole = u64::from(block_bytes);
    let bytes = identity.blocks * whole;
    if !offset.is_multiple_of(whole) || offset > bytes {
        return Err(range("the offset"));
    }
    if !len.is_multiple_of(whole) || len > bytes - offset {
        return Err(range("the length"));
    }
    let step = u64::from(namespace.transfer_bytes_max());
    let starts = (0..len.div_ceil(step)).map(|index| index * step);
    let piece = |start: u64| {
        let piece_bytes = usize::try_from(step.min(len - start)).expect("a piece is short");
        ((offset + start) / whole, piece_bytes)
    };
    Ok(starts.map(piece).collect())
}

/// Reads to a file or standard output.
pub(super) async fn read(arguments: &ReadArguments) -> Outcome<()> {
    let namespace = connect(&arguments.subsystem, 2).await?;
    let identity = namespace.identity();
    let bytes = identity.blocks << identity.block_bytes_log2;
    let left_bytes = bytes.saturating_sub(arguments.offset);
    let len = arguments.length.map_or(left_bytes, |size| size.0);
    let name = arguments
        .output
        .as_ref()
        .map(|path| path.display().to_string());
    let name = name.unwrap_or_else(|| "standard output".to_owned());
    let failed = |error| NvmeFailure::file(&name, error);
    let mut out: Box<dyn io::Write> = match &arguments.output {
        Some(path) => Box::new(fs::File::create(path).map_err(failed)?),
        None => Box::new(io::stdout().lock()),
    };
    for (first, len) in pieces(&namespace, arguments.offset, len)? {
        let region = arena().alloc(len)?;
        let read = namespace.read(first, region, COMMAND_TIMEOUT).await;
        let region = read.map_err(|failure| failure.error)?;
        out.write_all(region.as_slice()).map_err(failed)?;
    }
    out.flush().map_err(failed)?;
    Ok(namespace.close().await?)
}

/// Writes a file or standard input.
pub(super) async fn write(arguments: &WriteArguments) -> Outcome<()> {
    let namespace = connect(&arguments.subsystem, 2).await?;
    let name = arguments.input.display().to_string();
    let mut bytes = Vec::new();
    let read = if name == "-" {
        io::stdin().lock().read_to_end(&mut bytes).map(drop)
    } else {
        fs::read(&arguments.input).map(|found| bytes = found)
    };
    read.map_err(|error| NvmeFailure::file(&name, error))?;
    let block_bytes = namespace.identity().block_bytes() as usize;
    bytes.resize(bytes.len().next_multiple_of(block_bytes), 0);
    let mut rest = &bytes[..];
    for (first, len) in pieces(&namespace, arguments.offset, bytes.len() as u64)? {
        let (front, behind) = rest.split_at(len);
        let mut region = arena().alloc(len)?;
        region.as_mut_slice().copy_from_slice(front);
        let written = namespace
            .write(first, region.freeze(), false, COMMAND_TIMEOUT)
            .await;
        written.map_err(|failure| failure.error)?;
        rest = behind;
    }
    namespace
        .flush(COMMAND_TIMEOUT)
        .await
        .map_err(|failure| failure.error)?;
    Ok(namespace.close().await?)
}

#[cfg(test)]
mod tests {
    use lunette::runtime::net::TcpListener;
    use lunette::runtime::spawn_local;
    use lunette_nvmeof::proto::controller::Secrets;
    use lunette_nvmeof::proto::nqn::Nqn;
    use lunette_nvmeof::{Disk, Export, ExportedDisk, MemoryDisk, Server, ServerOptions};

    use super::*;
    use crate::program::nvme::core::on_core;
    use crate::program::nvme::subsystem::{
        DigestChoice, HostArguments, PathArguments, SUBSYSTEM, uuid_of,
    };

    #[test]
    fn ranges_are_split_into_commands() {
        let served = on_core(async || {
            let address = "127.0.0.1:0".parse().expect("an address");
            let listener = TcpListener::bind(address).expect("a port");
            let address = listener.local_addr();
            let export = Export {
                name: Nqn::new(SUBSYSTEM)?,
                hosts: None,
                secrets: Secrets::default(),
                disks: vec![ExportedDisk {
                    disk: Disk::Memory(MemoryDisk::new(4 << 20)?),
                    block_bytes: 4096,
                    uuid: uuid_of(SUBSYSTEM),
                    is_read_only: false,
                    ana_group: 1,
                }],
            };
            let server = Server::new(ServerOptions::default(), vec![export], &[address])?;
            drop(spawn_local(server.serve(listener, std::future::pending())));
            let arguments = SubsystemArguments {
                address,
                nqn: Nqn::new(SUBSYSTEM)?,
                digests: DigestChoice::Both,
                nsid: 1,
                paths: PathArguments::default(),
                host: HostArguments::default(),
            };
            let namespace = connect(&arguments, 2).await?;
            let split = pieces(&namespace, 4096, (2 << 20) + 4096)?;
            assert_eq!(split, [(1, 1 << 20), (257, 1 << 20), (513, 4096)]);
            assert!(pieces(&namespace, 4 << 20, 0)?.is_empty());
            for (offset, len) in [(1, 4096), (0, 1), (4096, 4 << 20), (8 << 20, 0)] {
                let refused = pieces(&namespace, offset, len);
                assert!(
                    matches!(refused, Err(NvmeFailure::Range { .. })),
                    "{offset} {len}"
                );
            }
            Ok(namespace.close().await?)
        });
        served.expect("served");
    }
}

//! Our server, for those who try it from outside.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lunette_nvmeof::proto::controller::Secrets;
use lunette_nvmeof::proto::log_page::AnaState;
use lunette_nvmeof::proto::nqn::Nqn;
use lunette_nvmeof::{Disk, Export, ExportedDisk, FileDisk, MemoryDisk, Server, ServerOptions};
use lunette_runtime::net::TcpListener;
use lunette_runtime::{CoreOptions, block_on, spawn_local, time};

/// Length of a disk in memory.
pub(crate) const DISK_BYTES: u64 = 64 << 20;
const GO_ON: u32 = 0;
const CUT: u32 = 1;
const STOP: u32 = 2;
/// And above: a state by its index, and a port's in the tens.
const SET_STATE: u32 = 100;

pub(crate) fn name() -> Nqn {
    Nqn::new("nqn.2026-01.example:ours").expect("a name")
}

/// What it serves.
#[derive(Debug)]
pub(crate) enum Serves {
    /// A disk of [`DISK_BYTES`].
    Memory,
    /// A file or device of this path.
    File(String),
}

/// Our server, on a thread of its own.
pub(crate) struct OurServer {
    pub(crate) address: SocketAddr,
    /// Its second port.
    pub(crate) second: SocketAddr,
    order: Arc<AtomicU32>,
    thread: Option<JoinHandle<()>>,
}

impl OurServer {
    pub(crate) fn start(uuid: [u8; 16], serves: Serves) -> Self {
        Self::start_with(uuid, serves, Secrets::default())
    }

    /// For hosts that have to prove something.
    pub(crate) fn start_with(uuid: [u8; 16], serves: Serves, secrets: Secrets) -> Self {
        let (tell, told) = mpsc::channel();
        let order = Arc::new(AtomicU32::new(GO_ON));
        let orders = Arc::clone(&order);
        let thread = thread::spawn(move || {
            let serving = async move {
                let any_port = "127.0.0.1:0".parse().expect("an address");
                let listeners = [(); 2].map(|()| TcpListener::bind(any_port).expect("a port"));
                let disk = match serves {
                    Serves::Memory => Disk::Memory(MemoryDisk::new(DISK_BYTES).expect("room")),
                    Serves::File(path) => {
                        let opened = FileDisk::open(path.as_ref(), 4096).await;
                        Disk::File(opened.expect("opened"))
                    }
                };
                let disk = ExportedDisk {
                    disk,
                    block_bytes: 4096,
                    uuid,
                    is_read_only: false,
                    ana_group: 1,
                };
                let export = Export {
                    name: name(),
                    hosts: None,
                    secrets,
                    disks: vec![disk],
                };
                let addresses = [0, 1].map(|index| listeners[index].local_addr());
                let server = Server::new(ServerOptions::default(), vec![export], &addresses);
                let server = server.expect("a server");
                let stop = stop(Rc::clone(&server), orders);
                let serving = spawn_local(server.serve_ports(Vec::from(listeners), stop));
                tell.send(addresses).expect("somebody listens");
                serving.await.expect("no panic");
            };
            block_on(None, CoreOptions::default(), || serving).expect("a core");
        });
        let [address, second] = told.recv().expect("addresses");
        Self {
            address,
            second,
            order,
            thread: Some(thread),
        }
    }

    pub(crate) fn cut(&self) {
        self.order.store(CUT, Ordering::Relaxed);
    }

    /// Sets how the disk can be reached by port 1 or 2, and waits until that is done.
    pub(crate) fn set_state(&self, port: u32, state: AnaState) {
        let mut states = (0..).zip(AnaState::ALL);
        let (index, _) = states.find(|(_, known)| *known == state).expect("a state");
        let order = SET_STATE + 10 * port + index;
        self.order.store(order, Ordering::Relaxed);
        while self.order.load(Ordering::Relaxed) == order {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for OurServer {
    fn drop(&mut self) {
        self.order.store(STOP, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("no panic");
        }
    }
}

async fn stop(server: Rc<Server>, orders: Arc<AtomicU32>) {
    loop {
        match orders.swap(GO_ON, Ordering::Relaxed) {
            STOP => return,
            CUT => server.disconnect_all(),
            order @ SET_STATE.. => {
                let port = if order < SET_STATE + 20 { 1 } else { 2 };
                let state = AnaState::ALL[order as usize % 10];
                server.set_ana_state(port, 1, state);
            }
            _ => {}
        }
        time::sleep(Duration::from_millis(5)).await;
    }
}

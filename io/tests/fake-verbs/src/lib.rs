//! A libibverbs for tests: devices in memory, with both ends of each connection in one process.
//!
//! A device follows the rules of reliable connections, except for the faults of its script
//! (`faults`). Time passes in steps: each poll, arming and post of any queue is one. Tests create a
//! device with `fake_verbs_device`, change it with `fake_verbs_change`, count its objects with
//! `fake_verbs_count`, and let time pass with `fake_verbs_step`; all else has the names and types
//! of infiniband/verbs.h.

// Shared with pagelith-io; what is not needed here is unused.
#[allow(dead_code, missing_docs, reason = "the module is of another crate")]
#[path = "../../../src/verbs/abi.rs"]
mod abi;
mod faults;
mod memory;
mod world;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::os::fd::AsRawFd;
use std::ptr::null_mut;

use rustix::event::{Timespec, poll};
use rustix::io::Errno;

use abi::{
    AsyncEvent, Channel, Context, ContextOps, Cq, DeviceAttr, DeviceEntry, GidEntry, Mr, Pd,
    PortAttr, Qp, QpAttr, QpInitAttr, RawGid, RecvWr, SendWr, Wc,
};
use world::{Receive, Send, world};

/// Functions with C names. Each body may use its raw arguments.
macro_rules! exported {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)? $body:block)*) => { $(
        /// As in infiniband/verbs.h, or as the crate's documentation says.
        ///
        /// # Safety
        ///
        /// Pointers are to objects that this library returned, to structures of the caller, or to
        /// C strings.
        #[unsafe(no_mangle)]
        #[allow(unused_unsafe, reason = "some bodies use no raw argument")]
        pub unsafe extern "C" fn $name($($argument: $type),*) $(-> $result)? {
            // SAFETY: the caller keeps to the documentation; objects are freed once, by their
            // destroying functions.
            unsafe { $body }
        }
    )* };
}

fn boxed<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(value))
}

/// Set errno, and return the value of a failed call.
fn failed<T>(errno: Errno, value: T) -> T {
    memory::set_errno(errno.raw_os_error());
    value
}

fn status(result: Result<(), Errno>) -> c_int {
    result.err().map_or(0, Errno::raw_os_error)
}

exported! {
    fn fake_verbs_device(script: *const c_char) -> u32 {
        let script = CStr::from_ptr(script).to_str().unwrap_or("");
        world().new_device(script).unwrap_or(0)
    }

    fn fake_verbs_change(device: u32, script: *const c_char) -> c_int {
        let script = CStr::from_ptr(script).to_str().unwrap_or("");
        status(world().change(device, script))
    }

    fn fake_verbs_count(device: u32, what: *const c_char) -> u64 {
        world().count(device, CStr::from_ptr(what).to_str().unwrap_or(""))
    }

    fn fake_verbs_no_kernel() {
        world().has_kernel = false;
    }

    fn fake_verbs_step() {
        world().step();
    }

    fn ibv_get_device_list(count: *mut c_int) -> *mut *mut DeviceEntry {
        let world = world();
        if !world.has_kernel {
            return failed(Errno::NOSYS, null_mut());
        }
        let mut list: Vec<*mut DeviceEntry> =
            world.devices.iter().map(|device| boxed(device.number).cast()).collect();
        if !count.is_null() {
            *count = list.len() as c_int;
        }
        list.push(null_mut());
        Box::into_raw(list.into_boxed_slice()).cast()
    }

    fn ibv_free_device_list(list: *mut *mut DeviceEntry) {
        // Entries stay: open contexts have their pointers.
        let mut length = 1;
        while !(*list.add(length - 1)).is_null() {
            length += 1;
        }
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(list, length)));
    }

    fn ibv_get_device_name(device: *mut DeviceEntry) -> *const c_char {
        world().device(*device.cast::<u32>()).name.as_ptr()
    }

    fn ibv_open_device(device: *mut DeviceEntry) -> *mut Context {
        let number = *device.cast::<u32>();
        let mut world = world();
        let async_fd = world.device(number).wake.as_raw_fd();
        let ops = ContextOps {
            poll_cq: Some(poll_cq),
            req_notify_cq: Some(req_notify_cq),
            post_send: Some(post_send),
            post_recv: Some(post_recv),
            ..ContextOps::default()
        };
        let context = boxed(Context { device, ops, cmd_fd: -1, async_fd, num_comp_vectors: 1 });
        world.contexts.insert(context.addr(), number);
        context
    }

    fn ibv_close_device(context: *mut Context) -> c_int {
        world().contexts.remove(&context.addr());
        drop(Box::from_raw(context));
        0
    }

    fn ibv_query_device(context: *mut Context, attributes: *mut DeviceAttr) -> c_int {
        let mut world = world();
        let max_mr_size = world.of_context(context).faults.max_mr_size;
        *attributes = DeviceAttr {
            max_mr_size,
            max_qp_wr: 4096,
            max_sge: world::PIECES_MAX as c_int,
            max_sge_rd: world::PIECES_MAX as c_int,
            max_cqe: 65535,
            max_qp_rd_atom: 16,
            max_qp_init_rd_atom: 16,
            phys_port_cnt: 1,
            ..DeviceAttr::default()
        };
        0
    }

    fn ibv_query_port(context: *mut Context, _port: u8, attributes: *mut PortAttr) -> c_int {
        let mut world = world();
        let faults = &world.of_context(context).faults;
        *attributes = PortAttr {
            state: if faults.port_down { abi::port_state::DOWN } else { abi::port_state::ACTIVE },
            active_mtu: 5,
            // One entry more than there are GIDs: tables have empty entries.
            gid_tbl_len: faults.gids.len() as c_int + 1,
            link_layer: abi::link_layer::ETHERNET,
            ..PortAttr::default()
        };
        0
    }

    fn _ibv_query_gid_ex(
        context: *mut Context, port: u32, index: u32, entry: *mut GidEntry, _flags: u32,
        _size: usize
    ) -> c_int {
        let mut world = world();
        let Some(&(gid, gid_type)) = world.of_context(context).faults.gids.get(index as usize)
        else {
            return Errno::NODATA.raw_os_error();
        };
        let gid = RawGid(gid);
        *entry = GidEntry { gid, gid_index: index, port_num: port, gid_type, ndev_ifindex: 1 };
        0
    }

    fn ibv_alloc_pd(context: *mut Context) -> *mut Pd {
        let pd = boxed(Pd { context, handle: 0 });
        world().add_domain(context, pd);
        pd
    }

    fn ibv_dealloc_pd(pd: *mut Pd) -> c_int {
        let result = world().remove_domain(pd);
        if result.is_ok() {
            drop(Box::from_raw(pd));
        }
        status(result)
    }

    fn ibv_reg_mr(pd: *mut Pd, addr: *mut c_void, length: usize, access: c_int) -> *mut Mr {
        let base = addr.expose_provenance() as u64;
        match world().register(pd, base, length as u64, access) {
            Ok(key) => {
                let context = (*pd).context;
                boxed(Mr { context, pd, addr, length, handle: key, lkey: key, rkey: key })
            }
            Err(errno) => failed(errno, null_mut()),
        }
    }

    fn ibv_dereg_mr(mr: *mut Mr) -> c_int {
        world().deregister((*mr).lkey);
        drop(Box::from_raw(mr));
        0
    }

    fn ibv_create_comp_channel(context: *mut Context) -> *mut Channel {
        let mut world = world();
        let device = world.of_context(context).number;
        let wake = world::new_wake();
        let channel = boxed(Channel { context, fd: wake.as_raw_fd(), refcnt: 0 });
        world.channels.insert(channel.addr(), world::ChannelState::new(device, wake));
        channel
    }

    fn ibv_destroy_comp_channel(channel: *mut Channel) -> c_int {
        let result = world().remove_channel(channel.addr());
        if result.is_ok() {
            drop(Box::from_raw(channel));
        }
        status(result)
    }

    fn ibv_create_cq(
        context: *mut Context, cqe: c_int, cq_context: *mut c_void, channel: *mut Channel,
        _vector: c_int
    ) -> *mut Cq {
        let cq = boxed(Cq { context, channel, cq_context, handle: 0, cqe });
        world().add_queue(context, cq, channel);
        cq
    }

    fn ibv_destroy_cq(cq: *mut Cq) -> c_int {
        let result = world().remove_queue(cq.addr());
        if result.is_ok() {
            drop(Box::from_raw(cq));
        }
        status(result)
    }

    fn ibv_get_cq_event(
        channel: *mut Channel, cq: *mut *mut Cq, context: *mut *mut c_void
    ) -> c_int {
        let Some(queue) = world().take_queue_event(channel.addr()) else {
            return failed(Errno::AGAIN, -1);
        };
        *cq = std::ptr::with_exposed_provenance_mut(queue);
        *context = (**cq).cq_context;
        0
    }

    fn ibv_ack_cq_events(cq: *mut Cq, count: c_uint) {
        world().acknowledge(cq.addr(), count);
    }

    fn ibv_create_qp(pd: *mut Pd, init: *mut QpInitAttr) -> *mut Qp {
        let init = *init;
        let qp_num = world().add_pair(pd, &init);
        boxed(Qp {
            context: (*pd).context,
            pd,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            qp_num,
            qp_type: init.qp_type,
            ..Qp::default()
        })
    }

    fn ibv_modify_qp(qp: *mut Qp, attributes: *mut QpAttr, mask: c_int) -> c_int {
        status(world().modify((*qp).qp_num, &*attributes, mask))
    }

    fn ibv_query_qp(
        qp: *mut Qp, attributes: *mut QpAttr, _mask: c_int, _init: *mut QpInitAttr
    ) -> c_int {
        (*attributes).qp_state = world().pair_state((*qp).qp_num);
        0
    }

    fn ibv_destroy_qp(qp: *mut Qp) -> c_int {
        let number = (*qp).qp_num;
        while world().faults(number).stuck_destroy {
            let _ = poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: 1_000_000 }));
        }
        let result = world().remove_pair(number);
        if result.is_ok() {
            drop(Box::from_raw(qp));
        }
        status(result)
    }

    fn ibv_get_async_event(context: *mut Context, event: *mut AsyncEvent) -> c_int {
        match world().take_event(context) {
            Some(found) => {
                *event = found;
                0
            }
            None => failed(Errno::AGAIN, -1),
        }
    }

    fn ibv_ack_async_event(_event: *mut AsyncEvent) {}

    fn post_send(qp: *mut Qp, first: *mut SendWr, refused: *mut *mut SendWr) -> c_int {
        let mut next = first;
        while !next.is_null() {
            let raw = &*next;
            let pieces = std::slice::from_raw_parts(
                if raw.num_sge == 0 { std::ptr::dangling() } else { raw.sg_list.cast_const() },
                raw.num_sge as usize,
            );
            let request = Send::of(raw, pieces);
            let is_refused = next != first && world().faults((*qp).qp_num).refuse_posts;
            let posted = match is_refused {
                true => Err(Errno::NOMEM),
                false => world().post_send((*qp).qp_num, request),
            };
            if let Err(errno) = posted {
                *refused = next;
                return errno.raw_os_error();
            }
            next = raw.next;
        }
        world().step();
        0
    }

    fn post_recv(qp: *mut Qp, first: *mut RecvWr, refused: *mut *mut RecvWr) -> c_int {
        let mut next = first;
        while !next.is_null() {
            let raw = &*next;
            let pieces = std::slice::from_raw_parts(
                if raw.num_sge == 0 { std::ptr::dangling() } else { raw.sg_list.cast_const() },
                raw.num_sge as usize,
            );
            let request = Receive { id: raw.wr_id, pieces: pieces.to_vec() };
            if let Err(errno) = world().post_receive((*qp).qp_num, request) {
                *refused = next;
                return errno.raw_os_error();
            }
            next = raw.next;
        }
        0
    }

    fn poll_cq(cq: *mut Cq, room: c_int, to: *mut Wc) -> c_int {
        let mut world = world();
        world.step();
        let found = world.poll(cq.addr(), room as usize);
        for (at, completion) in found.iter().enumerate() {
            *to.add(at) = *completion;
        }
        found.len() as c_int
    }

    fn req_notify_cq(cq: *mut Cq, _solicited_only: c_int) -> c_int {
        world().arm(cq.addr());
        0
    }
}

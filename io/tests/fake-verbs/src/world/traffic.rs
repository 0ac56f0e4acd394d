//! How requests are carried out: in steps, by the rules of reliable connections, with the device's
//! faults.

use super::{Arrival, Region, Send, World, failed_completion};
use crate::abi::{self, Sge, Wc, access, opcode, qp_state, status, wc_opcode};
use crate::memory;

impl World {
    /// To the error state: requests of both queues are flushed, and nothing arrives any more.
    pub(super) fn fail(&mut self, number: u32) {
        let Some(pair) = self.pairs.get_mut(&number) else { return };
        if pair.state == qp_state::ERR {
            return;
        }
        pair.state = qp_state::ERR;
        let sends: Vec<_> = pair.sends.drain(..).map(|send| send.id).collect();
        let receives: Vec<_> = pair.receives.drain(..).map(|receive| receive.id).collect();
        let (device, queues) = (pair.device, [pair.send_queue, pair.receive_queue]);
        let faults = self.device(device).faults.clone();
        if !faults.lands_after_error
            && let Some(pair) = self.pairs.get_mut(&number)
        {
            pair.arrivals.clear();
        }
        if faults.never_drain {
            return;
        }
        for (queue, ids) in queues.into_iter().zip([sends, receives]) {
            for id in ids {
                self.complete(queue, failed_completion(id, status::WR_FLUSH, number));
            }
        }
    }

    /// Deliver a completion, as changed by the device's faults.
    pub(super) fn complete(&mut self, queue: usize, completion: Wc) {
        let Some(state) = self.queues.get(&queue) else { return };
        let number = state.device;
        let device = self.device(number);
        device.completions += 1;
        let (count, faults) = (device.completions, device.faults.clone());
        let Some(state) = self.queues.get_mut(&queue) else { return };
        if count == faults.lose_completion {
            return;
        }
        if count == faults.swap_completion {
            state.overtaken = Some(completion);
            return;
        }
        let copies = if count == faults.double_completion { 2 } else { 1 };
        let mut all = vec![completion; copies];
        all.extend(state.overtaken.take());
        state.late.extend(all.into_iter().map(|completion| (faults.late_completions, completion)));
        if faults.late_completions == 0 {
            self.deliver(queue);
        }
    }

    /// Move completions that are due to where polls find them.
    fn deliver(&mut self, queue: usize) {
        let Some(state) = self.queues.get_mut(&queue) else { return };
        let before = state.ready.len();
        while state.late.front().is_some_and(|(wait, _)| *wait == 0) {
            state.ready.extend(state.late.pop_front().map(|(_, completion)| completion));
        }
        if state.ready.len() > before {
            self.report(queue);
        }
    }

    /// Let time pass.
    pub fn step(&mut self) {
        let queues: Vec<usize> = self.queues.keys().copied().collect();
        for queue in queues {
            if let Some(state) = self.queues.get_mut(&queue) {
                state.late.iter_mut().for_each(|(wait, _)| *wait = wait.saturating_sub(1));
            }
            self.deliver(queue);
        }
        let pairs: Vec<u32> = self.pairs.keys().copied().collect();
        for number in pairs {
            self.arrive(number, true);
            self.send(number);
        }
        for mut arrival in std::mem::take(&mut self.orphans) {
            arrival.wait = arrival.wait.saturating_sub(1);
            match arrival.wait {
                0 => memory::scatter(&arrival.pieces, &arrival.bytes),
                _ => self.orphans.push(arrival),
            }
        }
    }

    /// Begin the requests of a pair that are due.
    fn send(&mut self, number: u32) {
        loop {
            let Some(pair) = self.pairs.get_mut(&number) else { return };
            let device = pair.device;
            let Some(front) = pair.sends.front_mut() else { return };
            if front.wait > 0 {
                front.wait -= 1;
                return;
            }
            if self.device(device).faults.stuck {
                return;
            }
            let Some(pair) = self.pairs.get_mut(&number) else { return };
            let Some(mut request) = pair.sends.pop_front() else { return };
            let (queue, opcode) = (pair.send_queue, request.opcode);
            match self.execute(number, &request) {
                Err(status::RNR_RETRY_EXC) if request.receiver_steps > 0 => {
                    request.receiver_steps -= 1;
                    if let Some(pair) = self.pairs.get_mut(&number) {
                        pair.sends.push_front(request);
                    }
                    return;
                }
                Err(status) => {
                    self.complete(queue, failed_completion(request.id, status, number));
                    self.fail(number);
                    return;
                }
                Ok(()) if request.signaled => {
                    let completion = Wc {
                        wr_id: request.id,
                        opcode: match opcode {
                            opcode::READ => wc_opcode::READ,
                            opcode::SEND => wc_opcode::SEND,
                            _ => wc_opcode::WRITE,
                        },
                        byte_len: request.length() as u32,
                        qp_num: number,
                        ..Wc::default()
                    };
                    self.complete(queue, completion);
                }
                Ok(()) => {}
            }
        }
    }

    /// Whether a region of the domain permits an access.
    fn permits(&self, domain: usize, key: u32, address: u64, length: u64, needed: i32) -> bool {
        let inside = |region: &Region| {
            let end = address.checked_add(length);
            region.domain == domain
                && region.access & needed == needed
                && address >= region.base
                && end.is_some_and(|end| end <= region.base + region.length)
        };
        length == 0 || self.regions.get(&key).is_some_and(inside)
    }

    fn permits_all(&self, domain: usize, pieces: &[Sge], needed: i32) -> bool {
        pieces.iter().all(|piece| {
            self.permits(domain, piece.lkey, piece.addr, u64::from(piece.length), needed)
        })
    }

    /// Carry out a request of a pair, or return the status of its failure.
    fn execute(&mut self, number: u32, request: &Send) -> Result<(), u32> {
        let pair = &self.pairs[&number];
        let (device, domain, peer_number) = (pair.device, pair.domain, pair.peer);
        let faults = self.device(device).faults.clone();
        if faults.fail_requests {
            return Err(status::RETRY_EXC);
        }
        let local = if request.opcode == opcode::READ { access::LOCAL_WRITE } else { 0 };
        if !self.permits_all(domain, &request.pieces, local) {
            return Err(status::LOC_PROT);
        }
        let peer = self.pairs.get(&peer_number).filter(|peer| peer.peer == number);
        let Some(peer) = peer.filter(|peer| matches!(peer.state, qp_state::RTR | qp_state::RTS))
        else {
            return Err(status::RETRY_EXC);
        };
        let (peer_domain, peer_access) = (peer.domain, peer.access);
        let needs_receive = matches!(request.opcode, opcode::SEND | opcode::WRITE_WITH_IMM);
        if needs_receive && peer.receives.is_empty() {
            return Err(status::RNR_RETRY_EXC);
        }
        let needed = match request.opcode {
            opcode::SEND => 0,
            opcode::READ => access::REMOTE_READ,
            _ => access::REMOTE_WRITE,
        };
        let (address, length) = (request.address, request.length());
        let permitted = request.opcode == opcode::SEND
            || (length == 0 || peer_access & needed != 0)
                && self.permits(peer_domain, request.key, address, length, needed);
        if !permitted {
            self.deny(peer_number);
            return Err(status::REM_ACCESS);
        }
        if request.opcode == opcode::READ {
            let mut bytes = memory::read(address, length as usize);
            corrupt(&mut bytes, faults.corrupt);
            memory::scatter(&request.pieces, &bytes);
            return Ok(());
        }
        self.device(device).bytes_written += length;
        let target = Sge { addr: address, length: length as u32, lkey: request.key };
        let mut arrival = Arrival {
            wait: faults.late_bytes,
            pieces: if length == 0 { Vec::new() } else { vec![target] },
            bytes: memory::gather(&request.pieces),
            completion: None,
        };
        corrupt(&mut arrival.bytes, faults.corrupt);
        let Some(peer) = self.pairs.get_mut(&peer_number) else { return Err(status::RETRY_EXC) };
        if needs_receive && let Some(receive) = peer.receives.pop_front() {
            let mut completion = Wc {
                wr_id: receive.id,
                qp_num: peer_number,
                byte_len: length as u32,
                ..Wc::default()
            };
            if request.opcode == opcode::SEND {
                completion.opcode = wc_opcode::RECV;
                let room: u64 = receive.pieces.iter().map(|piece| u64::from(piece.length)).sum();
                let queue = peer.receive_queue;
                if length > room {
                    self.complete(
                        queue,
                        failed_completion(receive.id, status::LOC_LEN, peer_number),
                    );
                    self.fail(peer_number);
                    return Err(status::REM_INV_REQ);
                }
                if !self.permits_all(peer_domain, &receive.pieces, access::LOCAL_WRITE) {
                    self.complete(
                        queue,
                        failed_completion(receive.id, status::LOC_PROT, peer_number),
                    );
                    self.fail(peer_number);
                    return Err(status::REM_OP);
                }
                arrival.pieces = receive.pieces;
            } else {
                completion.opcode = wc_opcode::RECV_WITH_IMM;
                completion.wc_flags = abi::wc_flag::WITH_IMM;
                completion.imm_data = request.immediate;
            }
            arrival.completion = Some(completion);
        }
        if faults.notice_first
            && let Some(completion) = arrival.completion.take()
        {
            let queue = self.pairs[&peer_number].receive_queue;
            self.complete(queue, completion);
        }
        if let Some(peer) = self.pairs.get_mut(&peer_number) {
            peer.arrivals.push_back(arrival);
        }
        self.arrive(peer_number, false);
        Ok(())
    }

    /// An access was denied, which ends the pair that it went to.
    fn deny(&mut self, number: u32) {
        let arrivals = |world: &mut World| {
            world.pairs.get_mut(&number).map(|pair| std::mem::take(&mut pair.arrivals))
        };
        let before = arrivals(self);
        self.fail(number);
        if let Some(pair) = self.pairs.get_mut(&number)
            && self.devices[pair.device as usize - 1].faults.lands_after_deregister
        {
            pair.arrivals = before.unwrap_or_default();
        }
    }

    /// Deliver the messages that are due at a pair, in order.
    fn arrive(&mut self, number: u32, step: bool) {
        if step && let Some(pair) = self.pairs.get_mut(&number) {
            pair.arrivals
                .iter_mut()
                .for_each(|arrival| arrival.wait = arrival.wait.saturating_sub(1));
        }
        loop {
            let Some(pair) = self.pairs.get_mut(&number) else { return };
            if pair.arrivals.front().is_none_or(|arrival| arrival.wait > 0) {
                return;
            }
            let (device, domain, queue) = (pair.device, pair.domain, pair.receive_queue);
            let Some(arrival) = pair.arrivals.pop_front() else { return };
            // A region may have been deregistered meanwhile.
            if self.device(device).faults.lands_after_deregister
                || self.permits_all(domain, &arrival.pieces, access::LOCAL_WRITE)
            {
                memory::scatter(&arrival.pieces, &arrival.bytes);
            }
            if let Some(completion) = arrival.completion {
                self.complete(queue, completion);
            }
        }
    }
}

/// Change one bit in the middle, if there are bytes.
fn corrupt(bytes: &mut [u8], is_wanted: bool) {
    let middle = bytes.len() / 2;
    if let Some(byte) = bytes.get_mut(middle).filter(|_| is_wanted) {
        *byte ^= 0x10;
    }
}

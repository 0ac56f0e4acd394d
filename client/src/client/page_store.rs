//! The calls of a client as those of any store.

use std::time::Duration;

use pagelith_io::device::{CallerStream, Device, DeviceHandle, Driver};
use pagelith_layouts::ids::{Generation, NamespaceId};
use pagelith_layouts::key::ObjectKey;

use super::{Client, Group, Pin, Session, View};
use crate::api::device::pieces::{DeviceGet, DeviceGroup};
use crate::api::error::Result;
use crate::api::events::Events;
use crate::api::hint::Hint;
use crate::api::hits::{PagesFound, PagesQuery};
use crate::api::outcome::{CompletedBatch, FlushReport, GetOutcome, PutOutcome, Ticket};
use crate::api::page_store::{PageGroup, PagePin, PageSession, PageStore, PageView};
use crate::api::request::{Get, GetSlice, Options, PutGroup, PutSlice, RequestEpoch};

impl PageStore for Client {
    fn begin_request(&self) -> RequestEpoch {
        self.begin_request()
    }

    fn put_batch(&self, objects: &[PutSlice<'_>], options: Options) -> Vec<Result<PutOutcome>> {
        self.put_batch(objects, options)
    }

    fn put_groups(&self, groups: &[&[PutSlice<'_>]], options: Options) -> Vec<Result<PutOutcome>> {
        self.put_groups(groups, options)
    }

    fn put_attached(
        &self,
        groups: &[(ObjectKey, &[PutSlice<'_>])],
        options: Options,
    ) -> Vec<Result<PutOutcome>> {
        self.put_attached(groups, options)
    }

    fn put_parts(
        &self,
        required: &[ObjectKey],
        parts: &[&[PutSlice<'_>]],
        options: Options,
    ) -> Vec<Result<PutOutcome>> {
        self.put_parts(required, parts, options)
    }

    fn begin_group(&self, required: &[ObjectKey], options: Options) -> Result<Box<dyn PageGroup>> {
        Ok(Box::new(self.begin_group(required, options)?))
    }

    fn get_batch(
        &self,
        gets: &mut [GetSlice<'_, '_>],
        options: Options,
    ) -> Vec<Result<GetOutcome>> {
        self.get_batch(gets, options)
    }

    fn bind_device(&self, device: Device) -> Result<DeviceHandle> {
        self.bind_device(device)
    }

    fn bind_device_of(&self, driver: &Driver, ordinal: u32) -> Result<DeviceHandle> {
        self.bind_device_of(driver, ordinal)
    }

    fn get_to_device(
        &self,
        device: &DeviceHandle,
        after: Option<&CallerStream>,
        gets: &[DeviceGet<'_>],
        options: Options,
    ) -> Vec<Result<GetOutcome>> {
        self.get_to_device(device, after, gets, options)
    }

    fn put_from_device(
        &self,
        device: &DeviceHandle,
        after: Option<&CallerStream>,
        groups: &[DeviceGroup<'_>],
        required: &[ObjectKey],
        options: Options,
    ) -> Vec<Result<PutOutcome>> {
        self.put_from_device(device, after, groups, required, options)
    }

    fn exists_batch(&self, keys: &[ObjectKey], options: Options) -> Result<Vec<bool>> {
        self.exists_batch(keys, options)
    }

    fn exists_prefix(&self, keys: &[ObjectKey], options: Options) -> Result<usize> {
        self.exists_prefix(keys, options)
    }

    fn exists_groups(&self, query: &PagesQuery<'_>, options: Options) -> Result<PagesFound> {
        self.exists_groups(query, options)
    }

    fn prefetch(&self, keys: &[ObjectKey], options: Options) -> Result<usize> {
        self.prefetch(keys, options)
    }

    fn view_batch(
        &self,
        keys: &[ObjectKey],
        options: Options,
    ) -> Result<Vec<Option<Box<dyn PageView>>>> {
        let boxed = |view: View| -> Box<dyn PageView> { Box::new(view) };
        Ok(self.view_batch(keys, options)?.into_iter().map(|view| view.map(boxed)).collect())
    }

    fn pin(&self, keys: &[ObjectKey], options: Options) -> Result<Box<dyn PagePin>> {
        Ok(Box::new(self.pin(keys, options)?))
    }

    fn lease(&self, keys: &[ObjectKey], duration: Duration, options: Options) -> Result<usize> {
        self.lease(keys, duration, options)
    }

    fn hint(&self, keys: &[ObjectKey], hint: Hint, options: Options) -> Result<usize> {
        self.hint(keys, hint, options)
    }

    fn remove(&self, keys: &[ObjectKey], options: Options) -> Result<usize> {
        self.remove(keys, options)
    }

    fn clear(&self, namespace: NamespaceId, options: Options) -> Result<Generation> {
        self.clear(namespace, options)
    }

    fn flush(&self, options: Options) -> Result<FlushReport> {
        self.flush(options)
    }

    fn stats(&self, options: Options) -> Result<String> {
        self.stats(options)
    }

    fn take_events(&self, most: usize, options: Options) -> Result<Events> {
        self.take_events(most, options)
    }

    fn session(&self) -> Result<Box<dyn PageSession>> {
        Ok(Box::new(self.session()))
    }
}

impl PageGroup for Group {
    fn required(&self) -> &[ObjectKey] {
        self.required()
    }

    fn put(&self, objects: &[PutSlice<'_>], options: Options) -> Vec<Result<PutOutcome>> {
        self.put(objects, options)
    }

    fn missing(&self, options: Options) -> Result<Vec<ObjectKey>> {
        self.missing(options)
    }

    fn commit(&self, options: Options) -> Result<PutOutcome> {
        self.commit(options)
    }

    fn abort(&self) -> Result<()> {
        self.abort()
    }
}

impl PagePin for Pin {
    fn pinned(&self) -> usize {
        self.pinned()
    }

    fn is_held(&self) -> bool {
        self.is_held()
    }
}

impl PageView for View {
    fn length(&self) -> usize {
        self.len()
    }

    fn address(&self) -> Option<*const u8> {
        self.as_ptr()
    }

    fn is_held(&self) -> bool {
        self.is_held()
    }

    fn copy_out(&self, from: u64, to: &mut [u8]) -> bool {
        self.copy_out(from, to)
    }
}

impl PageSession for Session {
    fn submit_get(&mut self, gets: Vec<Get>, options: Options) -> Ticket {
        self.submit_get(gets, options)
    }

    fn submit_put(&mut self, groups: Vec<PutGroup>, options: Options) -> Ticket {
        self.submit_put(groups, options)
    }

    fn poll(&mut self) -> Option<(Ticket, CompletedBatch)> {
        self.poll()
    }

    fn wait(&mut self, ticket: Ticket, timeout: Duration) -> Option<CompletedBatch> {
        self.wait(ticket, timeout)
    }

    fn wait_any(&mut self, timeout: Duration) -> Option<(Ticket, CompletedBatch)> {
        self.wait_any(timeout)
    }

    fn is_busy(&self) -> bool {
        self.is_busy()
    }
}

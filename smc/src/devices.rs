//! The devices of an endpoint: those that it was built with, and those added later.

use std::sync::Arc;

use smc_wire::size::SizeCode;
use smc_wire::types::{Features, HostName};

use super::device_driver::{DeviceDriver, DriverTask, claim};
use super::endpoint::EndpointInner;
use crate::device::Device;
use crate::error::Error;
use crate::proto::group::DeviceIndex;
use crate::proto::handshake::{DirectDevice, HandshakeConfig};

impl EndpointInner {
    /// Starts to use a device. Handshakes offer it from [`EndpointInner::update_base_config`] on.
    pub(crate) fn start_driver(&self, device: Arc<dyn Device>) -> Result<(), Error> {
        // One at a time, as the index is the length of the list.
        let _adding = self.adding.lock();
        let is_same = |driver: &Arc<DeviceDriver>| Arc::ptr_eq(&driver.device, &device);
        if self.drivers.iter().any(is_same) {
            return Err(Error::misuse("the endpoint has this device already"));
        }
        let driver = DeviceDriver::new(
            device,
            DeviceIndex(self.drivers.len()),
            Arc::clone(&self.groups),
            self.config.close_timeout,
            Arc::clone(&self.runtime),
        );
        claim(&driver)?;
        driver.device.limit_memory(&self.groups.memory);
        let runtime = &self.groups.runtime;
        let task = DriverTask::new(&driver, Arc::clone(runtime), self.config.polling)?;
        self.groups.add_driver(&driver);
        self.drivers.push(Arc::clone(&driver));
        runtime.spawn(Box::pin(task));
        info!("device is added", device = driver.name);
        // If the runtime of the endpoint has ended meanwhile, a task on another one does not end
        // by itself, and was added too late to be ended with the others.
        self.lifetime.check().inspect_err(|_| driver.end_task())
    }

    /// Lets handshakes that begin from now on use the devices that there are.
    pub(crate) fn update_base_config(&self) {
        let mut base = self.base_config.lock();
        *base = Arc::new(self.new_base_config());
        drop(base);
        self.groups.addresses_changed();
    }

    /// The devices and settings as a handshake needs them.
    fn new_base_config(&self) -> HandshakeConfig {
        let drivers = || {
            let all = self.drivers.iter().enumerate();
            all.filter(|(_, driver)| !driver.is_gone())
        };
        let devices = drivers().filter_map(|(index, driver)| {
            let direct = driver.device.operations().direct()?;
            let limit = driver.device.limits().max_dmb_len;
            let max_buffer = (0..=SizeCode::MAX.code())
                .filter_map(SizeCode::new)
                .take_while(|size| size.byte_len() <= limit)
                .last()
                .unwrap_or(SizeCode::MIN);
            Some(DirectDevice {
                index: DeviceIndex(index),
                gid: direct.gid(),
                chid: direct.chid(),
                pnet_id: driver.device.identity().pnet_id,
                nocopy: direct.nocopy().is_some(),
                max_buffer,
            })
        });
        let config = &self.config;
        let mut base = HandshakeConfig::new(devices.collect());
        let native = drivers().find_map(|(_, driver)| driver.device.operations().direct()?.seid());
        base.seid = config.seid_enabled.then(|| native.unwrap_or(config.seid));
        base.ueids.clone_from(&config.ueids);
        base.pnet_ids.clone_from(&config.pnet_ids);
        base.buffer = config.recv_buffer;
        base.rmb = config.rmb;
        base.vendor_features = config.vendor_features;
        base.vendor_features
            .set(Features::FAST_OPEN, config.fast_open);
        base.timeouts.message = config.handshake_timeout;
        base.timeouts.work = config.handshake_timeout.mul_f32(WORK_SHARE);
        base.host = HostName::new(&rustix::system::uname().nodename().to_string_lossy());
        base
    }
}

/// The part of a message's timeout that device work may take: the peer should receive a failure
/// before its own timeout.
const WORK_SHARE: f32 = 5.0 / 6.0;

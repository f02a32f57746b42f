//! Minimal access to a CUDA device: what the dispatcher asks, and what examples and tests need to hold
//! tensors. Programs that already use CUDA (cudarc, candle, PyTorch) pass their own pointers and streams
//! to [`crate::ops`] instead.
//!
//! It talks to the driver (`libcuda.so.1`), opened when first used: nothing is linked for it, it works
//! with a static and with a shared artifact, and on a machine without a driver it answers
//! [`Error::Device`]. Memory and streams belong to the device's primary context, the one that the CUDA
//! runtime inside an artifact uses.

use crate::capability::ComputeCapability;
use crate::dtype::Element;
use crate::error::{Error, Result};
use crate::ops::Stream;
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::sync::OnceLock;

/// What the dispatcher needs to know of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Properties {
    /// Its compute capability.
    pub capability: ComputeCapability,
    /// The most shared memory that one block may ask for, bytes.
    pub shared_memory: usize,
}

/// A CUDA device whose primary context this process holds.
#[derive(Debug, Clone)]
pub struct Device {
    driver: &'static Driver,
    /// A `CUcontext`, kept until the process ends.
    context: Handle,
    name: String,
    properties: Properties,
}

/// A CUDA handle: an address that only the driver follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Handle(usize);

impl Handle {
    fn pointer(self) -> *mut c_void {
        std::ptr::without_provenance_mut(self.0)
    }
}

impl Device {
    /// How many devices the driver offers.
    ///
    /// # Errors
    /// [`Error::Device`] without a driver.
    pub fn count() -> Result<usize> {
        let driver = driver()?;
        let mut count: c_int = 0;
        // SAFETY: `count` is writable.
        driver.check("cuDeviceGetCount", unsafe { (driver.cuDeviceGetCount)(&raw mut count) })?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// Opens device `ordinal` and makes it this thread's current device.
    ///
    /// # Errors
    /// [`Error::Device`] without a driver or without that device, [`Error::Cuda`] if a call fails.
    pub fn open(ordinal: usize) -> Result<Device> {
        let driver = driver()?;
        let count = Device::count()?;
        let index = c_int::try_from(ordinal).ok().filter(|_| ordinal < count);
        let Some(index) = index else {
            return Err(Error::Device(format!("device {ordinal} was asked for, the driver offers {count}")));
        };
        let mut id: c_int = 0;
        // SAFETY: `id` is writable.
        driver.check("cuDeviceGet", unsafe { (driver.cuDeviceGet)(&raw mut id, index) })?;
        let mut context: *mut c_void = std::ptr::null_mut();
        // SAFETY: `context` is writable and `id` a device.
        let code = unsafe { (driver.cuDevicePrimaryCtxRetain)(&raw mut context, id) };
        driver.check("cuDevicePrimaryCtxRetain", code)?;
        let number = |name, attribute| -> Result<u32> {
            let mut value: c_int = 0;
            // SAFETY: `value` is writable and `id` a device.
            let code = unsafe { (driver.cuDeviceGetAttribute)(&raw mut value, attribute, id) };
            driver.check(name, code)?;
            u32::try_from(value).map_err(|_| Error::Device(format!("{name} is {value}")))
        };
        let properties = Properties {
            capability: ComputeCapability {
                major: number("compute capability (major)", ATTRIBUTE_MAJOR)?,
                minor: number("compute capability (minor)", ATTRIBUTE_MINOR)?,
            },
            shared_memory: number("shared memory per block (opt-in)", ATTRIBUTE_SHARED_MEMORY)? as usize,
        };
        let mut name = [0_u8; 128];
        let room = (name.len() - 1) as c_int;
        // SAFETY: `name` has room for that many bytes and stays NUL-terminated.
        let code = unsafe { (driver.cuDeviceGetName)(name.as_mut_ptr().cast(), room, id) };
        driver.check("cuDeviceGetName", code)?;
        let name = CStr::from_bytes_until_nul(&name).map(|name| name.to_string_lossy().into_owned());
        let device =
            Device { driver, context: Handle(context.addr()), name: name.unwrap_or_default(), properties };
        device.make_current()?;
        Ok(device)
    }

    /// Makes it this thread's current device, where the operations of [`crate::ops`] run.
    ///
    /// # Errors
    /// [`Error::Cuda`] if the driver refuses.
    pub fn make_current(&self) -> Result<()> {
        // SAFETY: the context is held until the process ends.
        let code = unsafe { (self.driver.cuCtxSetCurrent)(self.context.pointer()) };
        self.driver.check("cuCtxSetCurrent", code)
    }

    /// Its name: `NVIDIA H200`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the dispatcher needs to know of it.
    pub fn properties(&self) -> Properties {
        self.properties
    }

    /// Waits until everything that was enqueued on it is done, and reports what failed meanwhile.
    ///
    /// # Errors
    /// [`Error::Cuda`] with the error of the work that failed.
    pub fn synchronize(&self) -> Result<()> {
        self.make_current()?;
        // SAFETY: takes nothing.
        self.driver.check("cuCtxSynchronize", unsafe { (self.driver.cuCtxSynchronize)() })
    }
}

/// Device memory for `len` elements, freed when dropped. The caller sees to it that no work uses it then.
#[derive(Debug)]
pub struct DeviceBuffer<T: Element> {
    device: Device,
    address: u64,
    len: usize,
    elements: PhantomData<T>,
}

impl<T: Element> DeviceBuffer<T> {
    /// Memory whose bytes are all `byte`: 0 for zeros, 0xff for NaN in every type.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], or [`Error::Cuda`] if a call fails.
    pub fn filled(device: &Device, len: usize, byte: u8) -> Result<DeviceBuffer<T>> {
        device.make_current()?;
        let bytes = bytes::<T>(len)?;
        let driver = device.driver;
        let mut address = 0;
        // SAFETY: `address` is writable. The driver refuses 0 bytes, so at least one is asked for.
        let code = unsafe { (driver.cuMemAlloc_v2)(&raw mut address, bytes.max(1)) };
        driver.check(&format!("cuMemAlloc of {bytes} bytes"), code)?;
        let buffer = DeviceBuffer { device: device.clone(), address, len, elements: PhantomData };
        // SAFETY: the memory is ours and that long.
        let code = unsafe { (driver.cuMemsetD8_v2)(address, byte, bytes.max(1)) };
        driver.check("cuMemsetD8", code)?;
        Ok(buffer)
    }

    /// A copy of `elements` on the device.
    ///
    /// # Errors
    /// As [`filled`](DeviceBuffer::filled).
    pub fn from_slice(device: &Device, elements: &[T]) -> Result<DeviceBuffer<T>> {
        let buffer = DeviceBuffer::filled(device, elements.len(), 0)?;
        let driver = device.driver;
        let from = elements.as_ptr().cast();
        // SAFETY: both sides are that long, and the call returns when the slice has been read.
        let code = unsafe { (driver.cuMemcpyHtoD_v2)(buffer.address, from, bytes::<T>(elements.len())?) };
        driver.check("cuMemcpyHtoD", code)?;
        Ok(buffer)
    }

    /// A copy of its elements on the host, after everything on the default stream.
    ///
    /// # Errors
    /// [`Error::Cuda`] if the copy, or work enqueued before it, fails.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        self.device.synchronize()?;
        let mut elements = vec![T::default(); self.len];
        let driver = self.device.driver;
        let to = elements.as_mut_ptr().cast();
        // SAFETY: both sides are that long; every bit pattern is a value of an `Element`.
        let code = unsafe { (driver.cuMemcpyDtoH_v2)(to, self.address, bytes::<T>(self.len)?) };
        driver.check("cuMemcpyDtoH", code)?;
        Ok(elements)
    }

    /// Its address on the device.
    pub fn as_ptr(&self) -> *const T {
        std::ptr::without_provenance(self.address as usize)
    }

    /// Its address on the device, for output.
    pub fn as_mut_ptr(&mut self) -> *mut T {
        std::ptr::without_provenance_mut(self.address as usize)
    }
}

fn bytes<T>(len: usize) -> Result<usize> {
    len.checked_mul(size_of::<T>()).ok_or_else(|| Error::OutOfMemory(format!("{len} elements")))
}

impl<T: Element> Drop for DeviceBuffer<T> {
    fn drop(&mut self) {
        if self.device.make_current().is_ok() {
            // SAFETY: allocated by `filled` and freed once. A failure leaves nothing to do.
            let _ = unsafe { (self.device.driver.cuMemFree_v2)(self.address) };
        }
    }
}

/// A mark on the default stream, to measure device time.
#[derive(Debug)]
pub struct Event {
    device: Device,
    event: Handle,
}

impl Event {
    /// Enqueues a mark on the device's default stream.
    ///
    /// # Errors
    /// [`Error::Cuda`] if a call fails.
    pub fn record(device: &Device) -> Result<Event> {
        device.make_current()?;
        let driver = device.driver;
        let mut event: *mut c_void = std::ptr::null_mut();
        // SAFETY: `event` is writable.
        driver.check("cuEventCreate", unsafe { (driver.cuEventCreate)(&raw mut event, 0) })?;
        let mark = Event { device: device.clone(), event: Handle(event.addr()) };
        // SAFETY: the event is live, and null is the default stream.
        let code = unsafe { (driver.cuEventRecord)(event, std::ptr::null_mut()) };
        driver.check("cuEventRecord", code)?;
        Ok(mark)
    }

    /// Milliseconds of device time from `earlier` to here; waits for this mark.
    ///
    /// # Errors
    /// [`Error::Cuda`] with the error of work between the marks that failed.
    pub fn milliseconds_since(&self, earlier: &Event) -> Result<f32> {
        let driver = self.device.driver;
        // SAFETY: the event is live and recorded.
        let code = unsafe { (driver.cuEventSynchronize)(self.event.pointer()) };
        driver.check("cuEventSynchronize", code)?;
        let mut milliseconds = 0.0;
        let (from, to) = (earlier.event.pointer(), self.event.pointer());
        // SAFETY: both events are live and recorded.
        let code = unsafe { (driver.cuEventElapsedTime)(&raw mut milliseconds, from, to) };
        driver.check("cuEventElapsedTime", code)?;
        Ok(milliseconds)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created by `record` and destroyed once. A failure leaves nothing to do.
        let _ = unsafe { (self.device.driver.cuEventDestroy_v2)(self.event.pointer()) };
    }
}

/// Memory of the current device, to be used after what `stream` has enqueued so far.
pub(crate) fn allocate_async(bytes: usize, stream: Stream) -> Result<*mut c_void> {
    let driver = driver()?;
    let mut address = 0;
    // SAFETY: `address` is writable; the stream is the caller's, of the current device.
    let code = unsafe { (driver.cuMemAllocAsync)(&raw mut address, bytes, stream.as_raw()) };
    driver.check(&format!("cuMemAllocAsync of {bytes} bytes"), code)?;
    Ok(std::ptr::without_provenance_mut(address as usize))
}

/// Frees memory of [`allocate_async`] after what `stream` has enqueued so far.
pub(crate) fn free_async(pointer: *mut c_void, stream: Stream) {
    if let Ok(driver) = driver() {
        // SAFETY: allocated by `allocate_async` and freed once. A failure is that of earlier work, which the
        // stream reports itself.
        let _ = unsafe { (driver.cuMemFreeAsync)(pointer.addr() as u64, stream.as_raw()) };
    }
}

/// Rows of bytes in device memory, and where they go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) from: *const c_void,
    /// Bytes from the start of a row to that of the next.
    pub(crate) from_pitch: usize,
    pub(crate) to: *mut c_void,
    pub(crate) to_pitch: usize,
    pub(crate) width: usize,
    pub(crate) rows: usize,
}

/// Enqueues a copy of rows.
///
/// # Safety
/// Both sides are device memory of the current device that holds the rows, live until the stream has passed.
pub(crate) unsafe fn copy_rows_async(rows: &Rows, stream: Stream) -> Result<()> {
    let driver = driver()?;
    let copy = Copy2d {
        from_x: 0,
        from_y: 0,
        from_kind: MEMORY_TYPE_DEVICE,
        from_host: std::ptr::null(),
        from_device: rows.from.addr() as u64,
        from_array: std::ptr::null(),
        from_pitch: rows.from_pitch,
        to_x: 0,
        to_y: 0,
        to_kind: MEMORY_TYPE_DEVICE,
        to_host: std::ptr::null_mut(),
        to_device: rows.to.addr() as u64,
        to_array: std::ptr::null(),
        to_pitch: rows.to_pitch,
        width: rows.width,
        height: rows.rows,
    };
    // SAFETY: `copy` is live; the memory is the caller's promise.
    let code = unsafe { (driver.cuMemcpy2DAsync_v2)(&raw const copy, stream.as_raw()) };
    driver.check("cuMemcpy2DAsync", code)
}

const MEMORY_TYPE_DEVICE: c_uint = 2;

/// The driver's `CUDA_MEMCPY2D`.
#[repr(C)]
struct Copy2d {
    from_x: usize,
    from_y: usize,
    from_kind: c_uint,
    from_host: *const c_void,
    from_device: u64,
    from_array: *const c_void,
    from_pitch: usize,
    to_x: usize,
    to_y: usize,
    to_kind: c_uint,
    to_host: *mut c_void,
    to_device: u64,
    to_array: *const c_void,
    to_pitch: usize,
    width: usize,
    height: usize,
}

const ATTRIBUTE_MAJOR: c_int = 75;
const ATTRIBUTE_MINOR: c_int = 76;
const ATTRIBUTE_SHARED_MEMORY: c_int = 97;
const ERROR_OUT_OF_MEMORY: c_int = 2;
const ERROR_NO_DEVICE: c_int = 100;

macro_rules! driver_functions {
    ($($name:ident($($argument:ty),*);)+) => {
        /// The driver's functions that this crate calls.
        #[expect(non_snake_case, reason = "the driver's own names")]
        struct Driver {
            $($name: unsafe extern "C" fn($($argument),*) -> c_int,)+
            /// Keeps the functions' code mapped.
            _library: Library,
        }

        impl Driver {
            fn load(library: Library) -> std::result::Result<Driver, libloading::Error> {
                $(
                    let name = concat!(stringify!($name), "\0").as_bytes();
                    // SAFETY: the signature is that of the driver's documentation.
                    #[expect(non_snake_case, reason = "the driver's own names")]
                    let $name = *unsafe { library.get::<unsafe extern "C" fn($($argument),*) -> c_int>(name) }?;
                )+
                Ok(Driver { $($name,)+ _library: library })
            }
        }
    };
}

driver_functions! {
    cuInit(c_uint);
    cuGetErrorName(c_int, *mut *const c_char);
    cuGetErrorString(c_int, *mut *const c_char);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut c_int, c_int);
    cuDeviceGetName(*mut c_char, c_int, c_int);
    cuDeviceGetAttribute(*mut c_int, c_int, c_int);
    cuDevicePrimaryCtxRetain(*mut *mut c_void, c_int);
    cuCtxSetCurrent(*mut c_void);
    cuCtxSynchronize();
    cuMemAlloc_v2(*mut u64, usize);
    cuMemFree_v2(u64);
    cuMemAllocAsync(*mut u64, usize, *mut c_void);
    cuMemFreeAsync(u64, *mut c_void);
    cuMemcpy2DAsync_v2(*const Copy2d, *mut c_void);
    cuMemsetD8_v2(u64, u8, usize);
    cuMemcpyHtoD_v2(u64, *const c_void, usize);
    cuMemcpyDtoH_v2(*mut c_void, u64, usize);
    cuEventCreate(*mut *mut c_void, c_uint);
    cuEventRecord(*mut c_void, *mut c_void);
    cuEventSynchronize(*mut c_void);
    cuEventElapsedTime(*mut f32, *mut c_void, *mut c_void);
    cuEventDestroy_v2(*mut c_void);
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Driver")
    }
}

impl Driver {
    fn open() -> Result<Driver> {
        const NAME: &str = "libcuda.so.1";
        // SAFETY: loading the driver runs its initialisers, which every CUDA program does.
        let library = unsafe { Library::new(NAME) }
            .map_err(|error| Error::Device(format!("there is no usable CUDA driver: {error}")))?;
        let driver =
            Driver::load(library).map_err(|error| Error::Device(format!("{NAME} is too old: {error}")))?;
        // SAFETY: 0 is the only legal flag.
        driver.check("cuInit", unsafe { (driver.cuInit)(0) })?;
        Ok(driver)
    }

    fn check(&self, call: &str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let mut name: *const c_char = std::ptr::null();
        // SAFETY: `name` is writable; the driver sets it to a static string or null.
        let _ = unsafe { (self.cuGetErrorName)(code, &raw mut name) };
        let mut meaning: *const c_char = std::ptr::null();
        // SAFETY: as above.
        let _ = unsafe { (self.cuGetErrorString)(code, &raw mut meaning) };
        let message = format!("{call}: {} ({code}): {}", text(name), text(meaning));
        Err(match code {
            ERROR_OUT_OF_MEMORY => Error::OutOfMemory(message),
            ERROR_NO_DEVICE => Error::Device(message),
            _ => Error::Cuda(message),
        })
    }
}

fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return "unknown".to_owned();
    }
    // SAFETY: not null, so one of the driver's static strings.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

fn driver() -> Result<&'static Driver> {
    static DRIVER: OnceLock<Result<Driver>> = OnceLock::new();
    DRIVER.get_or_init(Driver::open).as_ref().map_err(Clone::clone)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Here or on a machine with a device: an answer, never a crash.
    #[test]
    fn a_machine_without_a_driver_gets_an_error_that_says_so() {
        match Device::open(usize::MAX) {
            Err(Error::Device(message)) => assert!(
                message.contains("no usable CUDA driver") || message.contains("the driver offers"),
                "{message}"
            ),
            other => panic!("{other:?}"),
        }
    }
}

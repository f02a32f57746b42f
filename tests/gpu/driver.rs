//! What the tests ask of the driver beyond what the crate needs: streams, and graphs captured from them.

use libloading::Library;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

macro_rules! functions {
    ($($name:ident($($argument:ty),*);)+) => {
        #[expect(non_snake_case, reason = "the driver's own names")]
        pub(super) struct Driver {
            $($name: unsafe extern "C" fn($($argument),*) -> c_int,)+
            /// Keeps the functions' code mapped.
            _library: Library,
        }

        impl Driver {
            pub(super) fn open() -> Driver {
                // SAFETY: the device's test has loaded the driver before.
                let library = unsafe { Library::new("libcuda.so.1") }.expect("there is a driver");
                $(
                    let name = concat!(stringify!($name), "\0").as_bytes();
                    // SAFETY: the signature is that of the driver's documentation.
                    #[expect(non_snake_case, reason = "the driver's own names")]
                    let $name = *unsafe { library.get::<unsafe extern "C" fn($($argument),*) -> c_int>(name) }
                        .expect(stringify!($name));
                )+
                Driver { $($name,)+ _library: library }
            }
        }
    };
}

functions! {
    cuMemsetD8_v2(u64, u8, usize);
    cuStreamCreate(*mut *mut c_void, c_uint);
    cuStreamSynchronize(*mut c_void);
    cuStreamDestroy_v2(*mut c_void);
    cuStreamBeginCapture_v2(*mut c_void, c_int);
    cuStreamEndCapture(*mut c_void, *mut *mut c_void);
    cuGraphGetNodes(*mut c_void, *mut *mut c_void, *mut usize);
    cuGraphNodeGetType(*mut c_void, *mut c_int);
    cuGraphInstantiateWithFlags(*mut *mut c_void, *mut c_void, c_ulonglong);
    cuGraphLaunch(*mut c_void, *mut c_void);
    cuGraphExecDestroy(*mut c_void);
    cuGraphDestroy(*mut c_void);
}

/// Does not wait for the default stream, nor that for it.
const NON_BLOCKING: c_uint = 1;
/// The strictest: any call that could synchronise or allocate outside of the stream is an error.
const CAPTURE_GLOBAL: c_int = 0;

/// What a call failed with.
pub(super) type Outcome<T> = Result<T, String>;

fn check(call: &str, code: c_int) -> Outcome<()> {
    if code == 0 { Ok(()) } else { Err(format!("{call}: driver error {code}")) }
}

/// A stream of the current device.
pub(super) struct TestStream<'a> {
    driver: &'a Driver,
    raw: *mut c_void,
}

impl TestStream<'_> {
    pub(super) fn new(driver: &Driver) -> Outcome<TestStream<'_>> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is writable.
        check("cuStreamCreate", unsafe { (driver.cuStreamCreate)(&raw mut raw, NON_BLOCKING) })?;
        Ok(TestStream { driver, raw })
    }

    pub(super) fn raw(&self) -> *mut c_void {
        self.raw
    }

    pub(super) fn wait(&self) -> Outcome<()> {
        // SAFETY: the stream is live.
        check("cuStreamSynchronize", unsafe { (self.driver.cuStreamSynchronize)(self.raw) })
    }

    /// What `enqueue` puts on this stream, as a graph; the stream's capture has ended whatever happened.
    pub(super) fn capture(&self, enqueue: impl FnOnce() -> Outcome<()>) -> Outcome<Graph<'_>> {
        let driver = self.driver;
        // SAFETY: the stream is live.
        check("cuStreamBeginCapture", unsafe { (driver.cuStreamBeginCapture_v2)(self.raw, CAPTURE_GLOBAL) })?;
        let enqueued = enqueue();
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream is live and capturing; `graph` is writable.
        let ended = unsafe { (driver.cuStreamEndCapture)(self.raw, &raw mut graph) };
        enqueued?;
        check("cuStreamEndCapture", ended)?;
        let mut graph = Graph { driver, graph, executable: std::ptr::null_mut() };
        // SAFETY: the graph is live; the handle is writable.
        let code = unsafe { (driver.cuGraphInstantiateWithFlags)(&raw mut graph.executable, graph.graph, 0) };
        check("cuGraphInstantiateWithFlags", code)?;
        Ok(graph)
    }
}

impl Drop for TestStream<'_> {
    fn drop(&mut self) {
        // SAFETY: created by `new` and destroyed once. A failure leaves nothing to do.
        let _ = unsafe { (self.driver.cuStreamDestroy_v2)(self.raw) };
    }
}

/// A captured graph that can be run.
pub(super) struct Graph<'a> {
    driver: &'a Driver,
    graph: *mut c_void,
    executable: *mut c_void,
}

impl Graph<'_> {
    pub(super) fn launch(&self, stream: &TestStream<'_>) -> Outcome<()> {
        // SAFETY: both handles are live.
        check("cuGraphLaunch", unsafe { (self.driver.cuGraphLaunch)(self.executable, stream.raw) })
    }

    /// How many nodes there are of each kind.
    pub(super) fn nodes(&self) -> Outcome<BTreeMap<String, usize>> {
        let mut count = 0;
        let none = std::ptr::null_mut();
        // SAFETY: the graph is live; without an array only the count is written.
        check("cuGraphGetNodes", unsafe { (self.driver.cuGraphGetNodes)(self.graph, none, &raw mut count) })?;
        let mut nodes = vec![std::ptr::null_mut(); count];
        // SAFETY: the array has room for that many.
        check("cuGraphGetNodes", unsafe {
            (self.driver.cuGraphGetNodes)(self.graph, nodes.as_mut_ptr(), &raw mut count)
        })?;
        let mut kinds = BTreeMap::new();
        for node in nodes {
            let mut kind = 0;
            // SAFETY: the node is of the live graph; `kind` is writable.
            check("cuGraphNodeGetType", unsafe { (self.driver.cuGraphNodeGetType)(node, &raw mut kind) })?;
            let name = match kind {
                0 => "kernel".to_owned(),
                1 => "memcpy".to_owned(),
                2 => "memset".to_owned(),
                3 => "host".to_owned(),
                10 => "alloc".to_owned(),
                11 => "free".to_owned(),
                other => format!("kind {other}"),
            };
            *kinds.entry(name).or_default() += 1;
        }
        Ok(kinds)
    }
}

impl Drop for Graph<'_> {
    fn drop(&mut self) {
        if !self.executable.is_null() {
            // SAFETY: instantiated by `capture` and destroyed once. A failure leaves nothing to do.
            let _ = unsafe { (self.driver.cuGraphExecDestroy)(self.executable) };
        }
        // SAFETY: as above.
        let _ = unsafe { (self.driver.cuGraphDestroy)(self.graph) };
    }
}

impl Driver {
    /// Overwrites device memory; done when the device was waited for.
    pub(super) fn fill(&self, address: u64, byte: u8, bytes: usize) -> Outcome<()> {
        // SAFETY: the caller's live device memory of that size.
        check("cuMemsetD8", unsafe { (self.cuMemsetD8_v2)(address, byte, bytes) })
    }
}

// The CUDA runtime's functions, as far as the library and its tests call them, over the machine of machine.h. Linked in
// front of the real one. Streams do at once what they are told; while one is captured, what it is told is kept.
//
// A device as Blackwell's data center GPUs have it, which runs PTX for sm_90 and no kernels for Hopper alone.
#include <cuda_runtime_api.h>
#include <zstd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <utility>

#include "machine.h"

namespace emulator {
namespace {

constexpr int kMajor = 10, kMinor = 0, kProcessors = 132;
constexpr int kMostShared = 227 << 10, kUsualShared = 48 << 10;
constexpr size_t kAllMemory = size_t{8} << 30;

// From `at` of what nvcc links into programs: "fat binaries", machine code and PTX for several devices.
template <class T>
T read_at(const uint8_t* from, size_t at) {
  T value;
  std::memcpy(&value, from + at, sizeof value);
  return value;
}

// Empty where there is none.
std::string ptx_of(const uint8_t* binary) {
  const size_t header = read_at<uint16_t>(binary, 6), size = read_at<uint64_t>(binary, 8);
  constexpr uint16_t kPtx = 1;
  constexpr uint32_t kZstd = 0x8000, kLz4 = 0x2000;
  for (const uint8_t* entry = binary + header; entry < binary + header + size;) {
    const size_t entry_header = read_at<uint32_t>(entry, 4), payload = read_at<uint64_t>(entry, 8);
    const uint8_t* const bytes = entry + entry_header;
    if (read_at<uint16_t>(entry, 0) == kPtx) {
      const uint32_t flags = read_at<uint32_t>(entry, 40);
      std::string text(bytes, bytes + payload);
      if ((flags & kLz4) != 0) throw Fault("PTX that is compressed in another way");
      if ((flags & kZstd) != 0) {
        text.resize(read_at<uint64_t>(entry, 56));
        const size_t got = ZSTD_decompress(text.data(), text.size(), bytes, read_at<uint32_t>(entry, 16));
        if (ZSTD_isError(got) != 0) throw Fault(std::string("PTX: ") + ZSTD_getErrorName(got));
        text.resize(got);
      }
      text.resize(std::min(text.size(), text.find('\0')));
      return text;
    }
    entry = bytes + payload;
  }
  return {};
}

// Kernels that come together; read when they are first asked for.
class Binary {
 public:
  explicit Binary(const uint8_t* bytes) : bytes_(bytes) {}
  explicit Binary(const char* ptx) : module_(std::make_unique<Module>(ptx)) {}
  Module& module() {
    if (!module_) module_ = std::make_unique<Module>(ptx_of(bytes_));
    return *module_;
  }

 private:
  const uint8_t* bytes_ = nullptr;
  std::unique_ptr<Module> module_;
};

struct Kernel {
  Binary* binary;
  std::string name;
  int most_shared = kUsualShared;

  const Function* function() const { return binary->module().entry(name); }
};

using Work = std::function<void()>;
struct Recording {
  std::vector<Work> works;
  bool open = true;
};

// Of calls <<<>>> on their way.
struct Configuration {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
};

}  // namespace
}  // namespace emulator

struct CUstream_st {
  std::shared_ptr<emulator::Recording> recording;
};
struct CUevent_st {
  std::shared_ptr<emulator::Recording> recording;
};
struct CUgraph_st {
  std::vector<emulator::Work> works;
};
struct CUgraphExec_st {
  std::vector<emulator::Work> works;
};

namespace emulator {
namespace {

struct Runtime {
  std::recursive_mutex mutex;
  std::vector<std::unique_ptr<Binary>> binaries;
  std::map<const void*, Kernel> kernels;
  Memory memory;                 // that a device can reach, this machine's included
  std::map<void*, bool> pinned;  // of it, this machine's
  std::vector<Configuration> configurations;
  CUstream_st usual;

  static Runtime& get() {
    static auto* const runtime = new Runtime;  // which outlives all that may call it
    return *runtime;
  }
};

thread_local cudaError_t last_error = cudaSuccess;
thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

cudaError_t said(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

CUstream_st& stream_of(cudaStream_t stream) {
  const bool usual = stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
  return usual ? Runtime::get().usual : *stream;
}

cudaError_t attempt(const Work& work) {
  try {
    work();
    return cudaSuccess;
  } catch (const std::exception& fault) {
    std::fprintf(stderr, "emulated device: %s\n", fault.what());
    return said(cudaErrorLaunchFailure);
  }
}

// What the stream is recorded in; null where it is not.
Recording* recording_of(cudaStream_t stream) {
  const auto& recording = stream_of(stream).recording;
  return recording && recording->open ? recording.get() : nullptr;
}

// Now, or whenever the graph is launched that the stream is recorded for.
cudaError_t enqueue(cudaStream_t stream, Work work) {
  const std::lock_guard<std::recursive_mutex> lock(Runtime::get().mutex);
  Recording* const recording = recording_of(stream);
  if (recording == nullptr) return attempt(work);
  recording->works.push_back(std::move(work));
  return cudaSuccess;
}

cudaError_t launch(const void* key, dim3 grid, dim3 block, dim3 cluster, void** arguments, size_t shared,
                   cudaStream_t stream) {
  Runtime& runtime = Runtime::get();
  const std::lock_guard<std::recursive_mutex> lock(runtime.mutex);
  const auto kernel = runtime.kernels.find(key);
  if (kernel == runtime.kernels.end()) return said(cudaErrorInvalidDeviceFunction);
  Launch made = {};
  const cudaError_t error = attempt([&] {
    made.function = kernel->second.function();
    made.module = &kernel->second.binary->module();
  });
  if (error != cudaSuccess) return error;
  if (made.function == nullptr) return said(cudaErrorNoKernelImageForDevice);
  made.grid = {grid.x, grid.y, grid.z};
  made.block = {block.x, block.y, block.z};
  made.cluster = {cluster.x, cluster.y, cluster.z};
  const bool few = made.block.count() >= 1 && made.block.count() <= 1024;
  if (!few || made.grid.count() == 0 || grid.y > 65535 || grid.z > 65535) return said(cudaErrorInvalidConfiguration);
  if (static_cast<int>(shared) > kernel->second.most_shared) return said(cudaErrorInvalidValue);
  made.shared_bytes = static_cast<uint32_t>(shared);
  made.parameters.resize(made.function->parameter_bytes);
  for (size_t i = 0; i < made.function->parameters.size(); ++i) {
    const Slot& slot = made.function->parameters[i];
    std::memcpy(made.parameters.data() + slot.at, arguments[i], slot.bytes);
  }
  return enqueue(stream, [made = std::move(made)] { run(made, Runtime::get().memory); });
}

cudaError_t allocate(void** memory, size_t bytes, bool pinned) {
  Runtime& runtime = Runtime::get();
  const std::lock_guard<std::recursive_mutex> lock(runtime.mutex);
  *memory = nullptr;
  if (bytes > kAllMemory - runtime.memory.taken()) return said(cudaErrorMemoryAllocation);
  if (bytes == 0) return cudaSuccess;
  *memory = runtime.memory.allocate(bytes);
  if (*memory == nullptr) return said(cudaErrorMemoryAllocation);
  if (pinned) runtime.pinned[*memory] = true;
  return cudaSuccess;
}

cudaError_t release(void* memory, bool pinned) {
  Runtime& runtime = Runtime::get();
  const std::lock_guard<std::recursive_mutex> lock(runtime.mutex);
  if (memory == nullptr) return cudaSuccess;
  if (runtime.pinned.count(memory) != static_cast<size_t>(pinned)) return said(cudaErrorInvalidValue);
  runtime.pinned.erase(memory);
  return runtime.memory.release(memory) ? cudaSuccess : said(cudaErrorInvalidValue);
}

}  // namespace
}  // namespace emulator

using namespace emulator;

extern "C" {

// What nvcc's code for this machine calls -----------------------------------------------------------------------------

void** __cudaRegisterFatBinary(void* wrapper) {
  Runtime& runtime = Runtime::get();
  const auto* const bytes = read_at<const uint8_t*>(static_cast<const uint8_t*>(wrapper), 8);
  runtime.binaries.push_back(std::make_unique<Binary>(bytes));
  return reinterpret_cast<void**>(runtime.binaries.back().get());
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterFunction(void** binary, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
  Runtime::get().kernels[host] = {reinterpret_cast<Binary*>(binary), name};
}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
  Runtime::get().mutex.lock();  // until they are asked for
  Runtime::get().configurations.push_back({grid, block, shared, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  Runtime& runtime = Runtime::get();
  const Configuration configuration = runtime.configurations.back();
  runtime.configurations.pop_back();
  runtime.mutex.unlock();
  *grid = configuration.grid;
  *block = configuration.block;
  *shared = configuration.shared;
  *static_cast<cudaStream_t*>(stream) = configuration.stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(host));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared,
                               cudaStream_t stream) {
  return launch(kernel, grid, block, dim3(1), arguments, shared, stream);
}

// Launches ------------------------------------------------------------------------------------------------------------

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments, size_t shared,
                             cudaStream_t stream) {
  return launch(function, grid, block, dim3(1), arguments, shared, stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  dim3 cluster(1);
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config->attrs[i];
    if (attribute.id != cudaLaunchAttributeClusterDimension) continue;
    cluster = dim3(attribute.val.clusterDim.x, attribute.val.clusterDim.y, attribute.val.clusterDim.z);
  }
  return launch(function, config->gridDim, config->blockDim, cluster, arguments, config->dynamicSmemBytes,
                config->stream);
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  Runtime& runtime = Runtime::get();
  const std::lock_guard<std::recursive_mutex> lock(runtime.mutex);
  const auto kernel = runtime.kernels.find(function);
  if (kernel == runtime.kernels.end()) return said(cudaErrorInvalidDeviceFunction);
  const Function* its = nullptr;
  const cudaError_t error = attempt([&] { its = kernel->second.function(); });
  if (error != cudaSuccess) return error;
  if (its == nullptr) return said(cudaErrorNoKernelImageForDevice);
  *attributes = {};
  attributes->sharedSizeBytes = its->shared_bytes;
  attributes->maxThreadsPerBlock = 1024;
  attributes->ptxVersion = kernel->second.binary->module().architecture();
  attributes->binaryVersion = 10 * kMajor + kMinor;
  attributes->maxDynamicSharedSizeBytes = kernel->second.most_shared;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  Runtime& runtime = Runtime::get();
  const std::lock_guard<std::recursive_mutex> lock(runtime.mutex);
  const auto kernel = runtime.kernels.find(function);
  if (kernel == runtime.kernels.end()) return said(cudaErrorInvalidDeviceFunction);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value > kMostShared) return said(cudaErrorInvalidValue);
  kernel->second.most_shared = value;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void*, const cudaLaunchConfig_t*) {
  *clusters = 8;
  return cudaSuccess;
}

cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void* code, cudaJitOption*, void**, unsigned,
                                cudaLibraryOption*, void**, unsigned) {
  *library = reinterpret_cast<cudaLibrary_t>(new Binary(static_cast<const char*>(code)));
  return cudaSuccess;
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t library, const char* name) {
  auto* const binary = reinterpret_cast<Binary*>(library);
  const cudaError_t error = attempt([&] {
    const Function* function = binary->module().entry(name);
    if (function == nullptr) throw Fault("no kernel " + std::string(name));
    *kernel = reinterpret_cast<cudaKernel_t>(const_cast<Function*>(function));
  });
  if (error != cudaSuccess) return error;
  const std::lock_guard<std::recursive_mutex> lock(Runtime::get().mutex);
  Runtime::get().kernels[*kernel] = {binary, name};
  return cudaSuccess;
}
cudaError_t cudaLibraryUnload(cudaLibrary_t) { return cudaSuccess; }  // a graph may have its kernels

// Memory --------------------------------------------------------------------------------------------------------------

cudaError_t cudaMalloc(void** memory, size_t bytes) { return allocate(memory, bytes, false); }
cudaError_t cudaFree(void* memory) { return release(memory, false); }
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) { return allocate(memory, bytes, true); }
cudaError_t cudaFreeHost(void* memory) { return release(memory, true); }
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  *device = host;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* left, size_t* all) {
  const std::lock_guard<std::recursive_mutex> lock(Runtime::get().mutex);
  *all = kAllMemory;
  *left = kAllMemory - Runtime::get().memory.taken();
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  Runtime& runtime = Runtime::get();
  const std::lock_guard<std::recursive_mutex> lock(runtime.mutex);
  const Memory::Range range = runtime.memory.find(static_cast<const uint8_t*>(pointer), 1);
  *attributes = {};
  attributes->type = cudaMemoryTypeUnregistered;
  if (range.begin == nullptr) return cudaSuccess;
  const bool pinned = runtime.pinned.count(const_cast<uint8_t*>(range.begin)) != 0;
  attributes->type = pinned ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
  attributes->devicePointer = const_cast<void*>(pointer);
  attributes->hostPointer = pinned ? const_cast<void*>(pointer) : nullptr;
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return enqueue(stream, [=] { std::memcpy(to, from, bytes); });
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return cudaMemcpyAsync(to, from, bytes, kind, nullptr);
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind, cudaStream_t stream) {
  return enqueue(stream, [=] {
    for (size_t row = 0; row < height; ++row) {
      std::memcpy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
    }
  });
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  return enqueue(stream, [=] { std::memset(memory, value, bytes); });
}
cudaError_t cudaMemset(void* memory, int value, size_t bytes) { return cudaMemsetAsync(memory, value, bytes, nullptr); }
cudaError_t cudaMemset2DAsync(void* memory, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream) {
  return enqueue(stream, [=] {
    for (size_t row = 0; row < height; ++row) std::memset(static_cast<char*>(memory) + row * pitch, value, width);
  });
}

// Devices -------------------------------------------------------------------------------------------------------------

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : said(cudaErrorInvalidDevice); }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = kMajor;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = kMinor;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = kProcessors;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = kMostShared;
      break;
    default:
      *value = 0;
  }
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorLaunchFailure ? "cudaErrorLaunchFailure" : "an error of the emulated device";
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorLaunchFailure ? "a kernel did what it should not, see above"
                                         : "an error of the emulated device";
}

// Streams, events, graphs ---------------------------------------------------------------------------------------------

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, 0); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return recording_of(stream) != nullptr ? said(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  const std::lock_guard<std::recursive_mutex> lock(Runtime::get().mutex);
  stream_of(stream).recording = std::make_shared<Recording>();
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = recording_of(stream) != nullptr ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const std::lock_guard<std::recursive_mutex> lock(Runtime::get().mutex);
  Recording* const recording = recording_of(stream);
  if (recording == nullptr) return said(cudaErrorIllegalState);
  *graph = new CUgraph_st{recording->works};
  recording->open = false;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, capture_mode);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = new CUgraphExec_st{graph->works};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  return enqueue(stream, [works = exec->works] {
    for (const Work& work : works) work();
  });
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
// What is recorded of a stream that waits for one that is recorded comes behind what there is: the order of calls is
// one that both streams allow.
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const std::lock_guard<std::recursive_mutex> lock(Runtime::get().mutex);
  event->recording = stream_of(stream).recording;
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const std::lock_guard<std::recursive_mutex> lock(Runtime::get().mutex);
  if (event->recording) stream_of(stream).recording = event->recording;
  return cudaSuccess;
}

}  // extern "C"

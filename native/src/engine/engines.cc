#include "engine/engines.h"

#include "engine/host/host_engine.h"
#include "kvasir/backend.h"
#include "kvasir/error.h"

namespace kvasir {
namespace {

// Devices come before the backends of this machine.
constexpr int kDevices = 1;
const DeviceKind& device_at(int) { return cuda_device(); }

bool available(int index) {
  return index < kDevices ? device_at(index).obstacle().empty() : backend_at(index - kDevices).available();
}

void check_index(int index) {
  if (index < 0 || index >= backend_count()) {
    throw Error(ErrorCode::kInvalidArgument,
                "backend " + std::to_string(index) + " of " + std::to_string(backend_count()));
  }
}

// The one of that name; throws where it cannot run.
int require(const std::string& name) {
  for (int i = 0; i < kDevices; ++i) {
    if (name != device_at(i).name) continue;
    const std::string obstacle = device_at(i).obstacle();
    if (obstacle.empty()) return i;
    throw Error(ErrorCode::kUnavailable, "backend " + name + " cannot run here: " + obstacle);
  }
  return kDevices + backend_index(name.c_str());
}

int choose(const std::string& name) {
  if (name != "auto") return require(name);
  const std::string wanted = wanted_backend();
  if (wanted != "auto") {
    try {
      return require(wanted);
    } catch (const Error& error) {
      throw Error(error.code(), error.text() + " (environment variable " + kBackendVariable + ")");
    }
  }
  int index = 0;
  while (!available(index)) ++index;
  return index;
}

}  // namespace

ChosenEngine make_engine(const std::string& backend) {
  const int index = choose(backend);
  if (index < kDevices) return {device_at(index).make(), backend_index("auto")};
  return {make_host_engine(index - kDevices), index - kDevices};
}

int backend_count() { return kDevices + backend_list_size(); }

const char* backend_name(int backend) {
  check_index(backend);
  return backend < kDevices ? device_at(backend).name : backend_at(backend - kDevices).name;
}

const char* backend_summary(int backend) {
  check_index(backend);
  return backend < kDevices ? device_at(backend).summary : backend_at(backend - kDevices).summary;
}

const char* backend_obstacle(int backend) {
  check_index(backend);
  if (backend >= kDevices) return available(backend) ? "" : "this processor lacks the instructions";
  static const std::string obstacles[kDevices] = {device_at(0).obstacle()};  // does not change while we run
  return obstacles[backend].c_str();
}

bool backend_available(int backend) {
  check_index(backend);
  return available(backend);
}

const char* default_backend() { return backend_name(choose("auto")); }

}  // namespace kvasir

// profiler.cpp - events as rows of torch.profiler.
//
// Kineto, which makes torch.profiler's traces, takes a profiler for the device "PrivateUse1". A session of it collects events
// while a profile runs: executions and transfers become rows of the device, linked to the op during which they were started;
// compiles, waits and fallbacks rows of the host's threads.
#define USE_KINETO
#define FMT_HEADER_ONLY 1

#include <map>
#include <stack>

#include <libkineto.h>
#include <output_base.h>
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>

#include <c10/util/ApproximateClock.h>
#include <pybind11/pybind11.h>

#include "register.h"
#include "run/runtime.h"
#include "run/trace.h"
#include "status.h"

namespace torch_tpu {
namespace {

using libkineto::ActivityType;

// Process numbers of devices in a trace: behind those that Linux gives to processes.
constexpr int64_t kFirstDevice = 1 << 23;
enum Row : int32_t { kPrograms = 1, kTransfers = 2 };

int64_t wall_ns() { return c10::getTime(/*allow_monotonic=*/false); }

int64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

bool is_on_device(const tt_trace_event &event) {
  return event.kind == TT_TRACE_execute || event.kind == TT_TRACE_transfer;
}

ActivityType type_of(const tt_trace_event &event) {
  switch (event.kind) {
  case TT_TRACE_execute: return ActivityType::CONCURRENT_KERNEL;
  case TT_TRACE_transfer: return ActivityType::GPU_MEMCPY;
  default: return ActivityType::PRIVATEUSE1_RUNTIME;
  }
}

std::string name_of(const tt_trace_event &event) {
  if (event.kind == TT_TRACE_execute) return event.name;
  return std::string(tt_trace_kind_name(event.kind)) + " " + event.name;
}

// The text between the quotes of a JSON string: kineto writes metadata as they are.
std::string json_text(const char *text) {
  std::string out;
  for (const char *c = text; *c != '\0'; ++c) {
    if (*c == '"' || *c == '\\') out += '\\';
    out += static_cast<unsigned char>(*c) < 0x20 ? ' ' : *c;
  }
  return out;
}

class Session final : public libkineto::IActivityProfilerSession {
public:
  explicit Session(std::set<ActivityType> types) : types_(std::move(types)) {}
  ~Session() override {
    if (collector_ != nullptr && !stopped_) tt_trace_collector_stop(collector_, /*settle=*/false);
    tt_trace_collector_free(collector_);
  }
  Session(const Session &) = delete;
  Session &operator=(const Session &) = delete;

  void start() override {
    offset_ns_ = wall_ns() - monotonic_ns();
    const unsigned sited =
        TT_TRACE_BIT(TT_TRACE_compile) | TT_TRACE_BIT(TT_TRACE_wait) | TT_TRACE_BIT(TT_TRACE_fallback);
    if (tt_status status = tt_trace_collect(TT_TRACE_ALL, sited, &collector_)) {
      errors_.emplace_back(tt_status_message(status));
      tt_status_free(status);
      status_ = libkineto::TraceStatus::ERROR;
      return;
    }
    status_ = libkineto::TraceStatus::RECORDING;
  }

  void stop() override {
    if (collector_ == nullptr || stopped_) return;
    if (PyGILState_Check() != 0) {
      const pybind11::gil_scoped_release unlocked;
      tt_trace_collector_stop(collector_, /*settle=*/true);
    } else {
      tt_trace_collector_stop(collector_, /*settle=*/true);
    }
    stopped_ = true;
    status_ = libkineto::TraceStatus::PROCESSING;
  }

  std::vector<std::string> errors() override { return errors_; }

  void processTrace(libkineto::ActivityLogger &logger) override {
    processTrace(logger, [](int32_t) -> const libkineto::ITraceActivity * { return nullptr; }, 0, INT64_MAX);
  }

  void processTrace(libkineto::ActivityLogger &logger, libkineto::getLinkedActivityCallback linked, int64_t start_ns,
                    int64_t end_ns) override {
    buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
    buffer_->span = libkineto::TraceSpan(start_ns, end_ns, "torch_tpu");
    buffer_->gpuOpCount = 0;
    if (collector_ == nullptr) return;
    size_t count = 0;
    const tt_trace_event *events = tt_trace_collector_events(collector_, &count);
    for (size_t i = 0; i < count; ++i) {
      const int64_t begin = events[i].begin_ns + offset_ns_;
      if (begin < start_ns || begin > end_ns || !types_.contains(type_of(events[i]))) continue;
      add(events[i], linked);
    }
    for (const auto &activity : buffer_->activities) activity->log(logger);
    for (const int index : devices_)
      if (index != 0) logger.handleDeviceInfo(device_info(index), start_ns);
    if (const int64_t lost = tt_trace_collector_lost(collector_); lost > 0)
      errors_.push_back(std::to_string(lost) + " events got lost for lack of memory");
  }

  // Kineto asks for one; processTrace tells of the others.
  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    return std::make_unique<libkineto::DeviceInfo>(device_info(0));
  }

  std::vector<libkineto::ResourceInfo> getResourceInfos() override {
    std::vector<libkineto::ResourceInfo> rows;
    for (const int index : devices_) {
      rows.push_back({kPrograms, kPrograms, kFirstDevice + index, "programs"});
      rows.push_back({kTransfers, kTransfers, kFirstDevice + index, "transfers"});
    }
    return rows;
  }

  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override { return std::move(buffer_); }

  void pushCorrelationId(uint64_t id) override {
    correlations().push(id);
    tt_trace_set_correlation(id);
  }
  void popCorrelationId() override {
    if (!correlations().empty()) correlations().pop();
    tt_trace_set_correlation(correlations().empty() ? 0 : correlations().top());
  }

private:
  static libkineto::DeviceInfo device_info(int index) {
    const std::string number = std::to_string(index);
    return {kFirstDevice + index, kFirstDevice + index, "tpu:" + number, "TPU " + number};
  }

  static std::stack<uint64_t> &correlations() {
    thread_local std::stack<uint64_t> ids;
    return ids;
  }

  void add(const tt_trace_event &event, const libkineto::getLinkedActivityCallback &linked) {
    buffer_->emplace_activity(buffer_->span, type_of(event), name_of(event));
    libkineto::GenericTraceActivity &activity = *buffer_->activities.back();
    activity.startTime = event.begin_ns + offset_ns_;
    activity.endTime = event.end_ns + offset_ns_;
    activity.id = ++last_id_;
    activity.threadId = event.thread;
    if (is_on_device(event))
      place_on_device(event, activity);
    else
      place_on_host(event, activity);
    if (event.correlation != 0) activity.linked = linked(static_cast<int32_t>(event.correlation));
    if (event.operands != nullptr) activity.addMetadataQuoted("operands", json_text(event.operands));
    if (event.detail != nullptr) activity.addMetadataQuoted("detail", json_text(event.detail));
    if (event.site != nullptr) activity.addMetadataQuoted("line", json_text(event.site));
    if (event.fallback != nullptr) activity.addMetadataQuoted("fallback", json_text(event.fallback));
    if (event.bytes != 0) activity.addMetadata("bytes", event.bytes);
  }

  // A device runs one program after the other: what was started while another ran begins at that one's end.
  void place_on_device(const tt_trace_event &event, libkineto::GenericTraceActivity &activity) {
    devices_.insert(event.device_index);
    activity.device = static_cast<int32_t>(kFirstDevice + event.device_index);
    activity.resource = event.kind == TT_TRACE_execute ? kPrograms : kTransfers;
    int64_t &busy_until = busy_until_[{activity.device, activity.resource}];
    activity.startTime = std::min(std::max(activity.startTime, busy_until), activity.endTime);
    busy_until = std::max(busy_until, activity.endTime);
  }

  static void place_on_host(const tt_trace_event &event, libkineto::GenericTraceActivity &activity) {
    activity.device = libkineto::processId();
    activity.resource = event.thread;
  }

  const std::set<ActivityType> types_;
  tt_trace_collector *collector_ = nullptr;
  bool stopped_ = false;
  int64_t offset_ns_ = 0; // from CLOCK_MONOTONIC to kineto's time
  int32_t last_id_ = 0;
  std::set<int> devices_;
  std::map<std::pair<int32_t, int32_t>, int64_t> busy_until_;
  std::vector<std::string> errors_;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
};

class Profiler final : public libkineto::IActivityProfiler {
public:
  const std::string &name() const override { return name_; }
  const std::set<ActivityType> &availableActivities() const override { return types_; }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(const std::set<ActivityType> &types,
                                                                 const libkineto::Config &) override {
    return std::make_unique<Session>(types);
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(int64_t, int64_t, const std::set<ActivityType> &types,
                                                                 const libkineto::Config &config) override {
    return configure(types, config);
  }

private:
  const std::string name_ = "torch_tpu";
  const std::set<ActivityType> types_ = {ActivityType::CONCURRENT_KERNEL, ActivityType::GPU_MEMCPY,
                                         ActivityType::PRIVATEUSE1_RUNTIME};
};

} // namespace

void register_profiler() {
  torch::profiler::impl::PrivateUse1ProfilerRegistry::instance().registerFactory(
      [] { return std::make_unique<Profiler>(); });
}

} // namespace torch_tpu

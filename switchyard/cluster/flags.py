"""Flags of `vllm serve`: those that are ours to set, and those that we know. Any other passes with a warning."""

from __future__ import annotations

OWNED = {
    "model": "pools.NAME.model",
    "served_model_name": "pools.NAME.model",
    "host": "nothing: the engine listens on all addresses",
    "port": "pools.NAME.port",
    "tensor_parallel_size": "pools.NAME.nodes_per_replica and gpus_per_node",
    "nnodes": "pools.NAME.nodes_per_replica",
    "node_rank": "pools.NAME.placement",
    "headless": "pools.NAME.placement",
    "master_addr": "the first node of a replica in pools.NAME.placement",
    "master_port": "pools.NAME.master_port",
    "api_key": "pools.NAME.api_key_env",
    "hf_token": "nothing: engines are offline, and checkpoints are put into models_dir beforehand",
    "kv_cache_memory_bytes": "kv_cache_memory_gb, in GiB",
    "distributed_executor_backend": "nothing: ranks are started without Ray",
    "pipeline_parallel_size": "nothing: only tensor parallelism is planned for",
    "data_parallel_size": "pools.NAME.replicas: the gateway balances them",
}
"""Flags that follow from other keys, and from which."""

KNOWN = frozenset(
    """
    additional_config all2all_backend allowed_local_media_path allowed_media_domains allowed_origins api_server_count
    async_scheduling attention_backend attention_config block_size chat_template chat_template_content_format
    code_revision compilation_config config config_format cpu_offload_gb cudagraph_capture_sizes cudagraph_metrics
    decode_context_parallel_size default_chat_template_kwargs disable_access_log_for_endpoints disable_cascade_attn
    disable_chunked_mm_input disable_custom_all_reduce disable_fastapi_docs disable_hybrid_kv_cache_manager
    disable_log_stats disable_sliding_window disable_uvicorn_access_log distributed_timeout_seconds download_dir dtype
    enable_auto_tool_choice enable_chunked_prefill enable_cumem_allocator enable_dbo enable_eplb enable_expert_parallel
    enable_flashinfer_autotune enable_force_include_usage enable_log_outputs enable_log_requests enable_lora
    enable_mm_embeds enable_prefix_caching enable_prompt_embeds enable_prompt_tokens_details enable_request_id_headers
    enable_server_load_tracking enable_sleep_mode enable_tokenizer_info_endpoint enforce_eager
    exclude_tools_when_tool_choice_none expert_placement_strategy gdn_prefill_backend generation_config
    gpu_memory_utilization hf_config_path hf_overrides interleave_mm_strings io_processor_plugin kernel_config
    kv_cache_dtype kv_cache_dtype_skip_layers kv_cache_memory_gb kv_cache_metrics kv_events_config
    kv_offloading_backend kv_offloading_size kv_transfer_config language_model_only limit_mm_per_prompt load_format
    logits_processors logprobs_mode long_prefill_token_threshold lora_modules mamba_backend mamba_block_size
    mamba_cache_dtype mamba_cache_mode mamba_ssm_cache_dtype max_cudagraph_capture_size max_log_len max_logprobs
    max_lora_rank max_loras max_model_len max_num_batched_tokens max_num_queued_reqs max_num_queued_tokens max_num_seqs
    max_parallel_loading_workers media_io_kwargs middleware mm_encoder_attn_backend mm_encoder_tp_mode
    mm_processor_cache_gb mm_processor_cache_type mm_processor_kwargs model_impl model_loader_extra_config moe_backend
    num_gpu_blocks_override offload_backend optimization_level otlp_traces_endpoint override_generation_config
    performance_mode prefix_caching_hash_algo quantization quantization_config reasoning_config reasoning_parser
    reasoning_parser_plugin renderer_num_workers response_role revision root_path runner safetensors_load_strategy
    scheduler_cls scheduling_policy seed shutdown_timeout skip_mm_profiling skip_tokenizer_init spec_method spec_model
    spec_tokens speculative_config sse_keep_alive_interval stream_interval structured_outputs_config tokenizer
    tokenizer_mode tokenizer_revision tool_call_parser tool_parser_plugin tool_server trust_remote_code
    trust_request_chat_template use_tqdm_on_load uvicorn_log_level worker_cls worker_extension_cls
    """.split()  # noqa: SIM905 - a list of 150 quoted words is no easier to read
)
"""As of vLLM 0.32, without what has no place in a pool (TLS, gRPC, data parallelism, debugging)."""

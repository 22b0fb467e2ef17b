"""The norm layer classes of transformers 5.24.0, by the arithmetic they do.

303 classes. An entry is ``model:Class`` for transformers.models.<model>.modeling_<model>.<Class>, or
``model/file:Class`` where the module is called modeling_<file>. semantics.py describes the groups.
"""

CLASSES: dict[str, str] = {
    "R1": """
        aimv2:Aimv2RMSNorm apertus:ApertusRMSNorm apertus1p5:Apertus1p5TextRMSNorm arcee:ArceeRMSNorm
        aria:AriaTextRMSNorm axk1:AXK1RMSNorm axk2:AXK2RMSNorm bailing_hybrid:BailingHybridRMSNorm
        bamba:BambaRMSNorm bitnet:BitNetRMSNorm blt:BltRMSNorm chameleon:ChameleonRMSNorm clvp:ClvpRMSNorm
        cohere2_moe:Cohere2MoeRMSNorm cosmos3_edge:Cosmos3EdgeTextRMSNorm cpmant:CpmAntLayerNorm
        csm:CsmRMSNorm cwm:CwmRMSNorm deepseek_ocr2:DeepseekOcr2TextRMSNorm
        deepseek_ocr2:DeepseekOcr2VisionRMSNorm deepseek_v2:DeepseekV2RMSNorm deepseek_v3:DeepseekV3RMSNorm
        deepseek_v32:DeepseekV32RMSNorm deimv2:Deimv2RMSNorm dia:DiaRMSNorm diffllama:DiffLlamaRMSNorm
        doge:DogeRMSNorm dots1:Dots1RMSNorm dots3_note:Dots3NoteRMSNorm emu3:Emu3RMSNorm
        ernie4_5:Ernie4_5RMSNorm ernie4_5_moe:Ernie4_5_MoeRMSNorm ernie4_5_vl_moe:Ernie4_5_VLMoeRMSNorm
        eurobert:EuroBertRMSNorm evolla:EvollaRMSNorm exaone4:Exaone4RMSNorm exaone4_5:Exaone4_5_RMSNorm
        exaone_moe:ExaoneMoeRMSNorm falcon_h1:FalconH1RMSNorm falcon_mamba:FalconMambaRMSNorm glm:GlmRMSNorm
        glm4:Glm4RMSNorm glm4_moe:Glm4MoeRMSNorm glm4_moe_lite:Glm4MoeLiteRMSNorm glm4v:Glm4vRMSNorm
        glm4v_moe:Glm4vMoeRMSNorm glm4v_moe:Glm4vMoeTextRMSNorm glm5_next:Glm5NextRMSNorm
        glm5_next:Glm5NextTextRMSNorm glm_image:GlmImageRMSNorm glm_moe_dsa:GlmMoeDsaRMSNorm
        glm_ocr:GlmOcrRMSNorm granite:GraniteRMSNorm granite4_vision:Granite4VisionTextRMSNorm
        granite_docling:GraniteDoclingTextRMSNorm granite_swa:GraniteSWARMSNorm granitemoe:GraniteMoeRMSNorm
        granitemoe_swa:GraniteMoeSWARMSNorm granitemoehybrid:GraniteMoeHybridRMSNorm
        granitemoeshared:GraniteMoeSharedRMSNorm higgs_audio_v2:HiggsAudioV2RMSNorm
        hunyuan_v1_dense:HunYuanDenseV1RMSNorm hunyuan_v1_moe:HunYuanMoEV1RMSNorm
        hunyuan_vl:HunYuanVLRMSNorm hy_v3:HYV3RMSNorm hy_v4:HYV4RMSNorm hy_v4_vl:HYV4VLRMSNorm
        hyperclovax:HyperCLOVAXRMSNorm idefics2:Idefics2RMSNorm idefics3:Idefics3RMSNorm
        inkling:InklingRMSNorm internvl:InternVLVisionRMSNorm jamba:JambaRMSNorm jetmoe:JetMoeRMSNorm
        kimi_linear:KimiLinearRMSNorm kolibri1:Kolibri1RMSNorm laguna:LagunaRMSNorm lfm2:Lfm2RMSNorm
        lfm2_moe:Lfm2MoeRMSNorm lfm3:Lfm3RMSNorm lfm3_vl:Lfm3VlVisionRMSNorm lighton_ocr:LightOnOcrRMSNorm
        llama:LlamaRMSNorm llama4:Llama4TextRMSNorm longcat_flash:LongcatFlashRMSNorm mamba:MambaRMSNorm
        mamba2:Mamba2RMSNorm mellum:MellumRMSNorm mimo_v2_flash:MiMoV2FlashRMSNorm minicpm3:MiniCPM3RMSNorm
        minimax:MiniMaxRMSNorm minimax_m2:MiniMaxM2RMSNorm ministral:MinistralRMSNorm
        ministral3:Ministral3RMSNorm mistral:MistralRMSNorm mistral3:Mistral3RMSNorm
        mistral4:Mistral4RMSNorm mistral_large4:MistralLarge4RMSNorm mixtral:MixtralRMSNorm
        mllama:MllamaTextRMSNorm molmo2:Molmo2RMSNorm muse_glimmer_assistant:MuseGlimmerAssistantRMSNorm
        neucodec:NeuCodecRMSNorm olmoe:OlmoeRMSNorm ovis2:Ovis2RMSNorm paddleocr_vl:PaddleOCRRMSNorm
        pe_audio:PeAudioEncoderRMSNorm pe_audio_video:PeAudioVideoEncoderRMSNorm
        pe_video:PeVideoEncoderRMSNorm phi3:Phi3RMSNorm phi4_multimodal:Phi4MultimodalRMSNorm
        pixtral:PixtralRMSNorm qianfan_ocr:QianfanOCRVisionRMSNorm qwen2:Qwen2RMSNorm
        qwen2_5_omni:Qwen2_5OmniRMSNorm qwen2_5_vl:Qwen2_5_VLRMSNorm qwen2_moe:Qwen2MoeRMSNorm
        qwen2_vl:Qwen2VLRMSNorm qwen3:Qwen3RMSNorm qwen3_moe:Qwen3MoeRMSNorm
        qwen3_omni_moe:Qwen3OmniMoeCode2WavRMSNorm qwen3_omni_moe:Qwen3OmniMoeRMSNorm
        qwen3_omni_moe:Qwen3OmniMoeTextRMSNorm qwen3_omni_moe:Qwen3OmniMoeThinkerTextRMSNorm
        qwen3_vl:Qwen3VLTextRMSNorm qwen3_vl_moe:Qwen3VLMoeTextRMSNorm sapiens2:Sapiens2RMSNorm
        seed_oss:SeedOssRMSNorm smollm3:SmolLM3RMSNorm solar_open:SolarOpenRMSNorm timesfm:TimesFmRMSNorm
        timesfm2_5:TimesFm2_5RMSNorm ultrabert:UltrabertRMSNorm ultravbert:UltraVBertRMSNorm
        unlimited_ocr:UnlimitedOcrTextRMSNorm vibevoice:VibeVoiceRMSNorm
        vibevoice_acoustic_tokenizer:VibeVoiceAcousticTokenizerRMSNorm vibevoice_asr:VibeVoiceAsrRMSNorm
        voxtral_realtime:VoxtralRealtimeRMSNorm xcodec2:Xcodec2RMSNorm xlstm:xLSTMRMSNorm youtu:YoutuRMSNorm
        zamba:ZambaRMSNorm zamba2:Zamba2RMSNorm zaya:ZayaRMSNorm
    """,
    "R2": """
        afmoe:AfmoeRMSNorm beam:BeamRMSNorm deepseek_v4:DeepseekV4RMSNorm
        diffusion_gemma:DiffusionGemmaRMSNorm embedding_gemma2:EmbeddingGemma2RMSNorm
        flex_olmo:FlexOlmoRMSNorm flint:FlintRMSNorm gemma3n:Gemma3nRMSNorm gemma4:Gemma4RMSNorm
        gemma4_unified:Gemma4UnifiedRMSNorm gpt_oss:GptOssRMSNorm helium:HeliumRMSNorm
        inkling2:Inkling2RMSNorm inkling2_loop:Inkling2LoopRMSNorm
        kyutai_speech_to_text:KyutaiSpeechToTextRMSNorm lara_mini:LaraMiniRMSNorm moshi:MoshiRMSNorm
        muse_glimmer:MuseGlimmerRMSNorm muse_spark:MuseSparkRMSNorm nemotron_h:NemotronHRMSNorm
        nemotron_h_omni:NemotronH_Omni_RMSNorm neomme:NeoMMERMSNorm olmo2:Olmo2RMSNorm olmo3:Olmo3RMSNorm
        olmo_hybrid:OlmoHybridRMSNorm openai_privacy_filter:OpenAIPrivacyFilterRMSNorm
    """,
    "R3": """
        gemma:GemmaRMSNorm gemma2:Gemma2RMSNorm gemma3:Gemma3RMSNorm minimax_m3_vl:MiniMaxM3VLRMSNorm
        muse_glimmer:MuseGlimmerTextCenteredRMSNorm qwen3_5:Qwen3_5RMSNorm qwen3_5_moe:Qwen3_5MoeRMSNorm
        qwen3_next:Qwen3NextRMSNorm recurrent_gemma:RecurrentGemmaRMSNorm step3p7:Step3p7RMSNorm
        t5gemma:T5GemmaRMSNorm t5gemma2:T5Gemma2RMSNorm vaultgemma:VaultGemmaRMSNorm
    """,
    "R3b": "muse_spark:MuseSparkTextCenteredRMSNorm",
    "R4": """
        idefics:IdeficsRMSNorm kosmos2_5:Kosmos2_5LayerNorm longt5:LongT5LayerNorm mt5:MT5LayerNorm
        pix2struct:Pix2StructLayerNorm pop2piano:Pop2PianoLayerNorm
        switch_transformers:SwitchTransformersLayerNorm t5:T5LayerNorm udop:UdopLayerNorm umt5:UMT5LayerNorm
    """,
    "R5": """
        esmfold2:EsmFold2RMSNorm falcon_mamba:FalconMambaWeightlessRMSNorm hrm_text:HrmTextRMSNorm
        inkling2:Inkling2UnweightedRMSNorm inkling2_loop:Inkling2LoopUnweightedRMSNorm
        llama4:Llama4TextL2Norm nanochat:NanoChatRMSNorm
    """,
    "R6": "deepseek_v4:DeepseekV4UnweightedRMSNorm glm5_next:Glm5NextTextUnweightedRMSNorm",
    "R7": "hy_v4:HYV4UnweightedRMSNorm hy_v4_vl:HYV4VLUnweightedRMSNorm",
    "R8": "dory:DoryL2Norm",
    "R9": "gradium_phonon_tts:GradiumPhononTTSTimestepNorm imagegpt:ImageGPTLayerNorm",
    "R10": "muse_spark:MuseSparkTextInputScaledRMSNorm",
    "R11": "pocket_tts:PocketTTSTimestepNorm",
    "R12": "qwen4_exp:Qwen4ExpTextRMSNorm",
    "G1": """
        bamba:BambaRMSNormGated granitemoehybrid:GraniteMoeHybridRMSNormGated mamba2:MambaRMSNormGated
        nemotron_h:NemotronHRMSNormGated zamba2:Zamba2RMSNormGated
    """,
    "G2": "falcon_h1:FalconH1RMSNormGated",
    "G3": """
        olmo_hybrid:OlmoHybridRMSNormGated qwen3_5:Qwen3_5RMSNormGated qwen3_5_moe:Qwen3_5MoeRMSNormGated
        qwen3_next:Qwen3NextRMSNormGated qwen4_exp:Qwen4ExpTextRMSNormGated
    """,
    "G4": """
        bailing_hybrid:BailingHybridRMSNormGated glm5_next:Glm5NextTextRMSNormGated
        kimi_linear:KimiLinearRMSNormGated lara_mini:LaraMiniRMSNormGated
    """,
    "G5": "axk2:AXK2GatedRMSNorm",
    "L1": """
        convnext:ConvNextLayerNorm convnextv2:ConvNextV2LayerNorm deepseek_ocr2:DeepseekOcr2SamLayerNorm
        deepseek_vl_hybrid:DeepseekVLHybridLayerNorm dinov3_convnext:DINOv3ConvNextLayerNorm
        edgetam:EdgeTamLayerNorm edgetam_video:EdgeTamVideoLayerNorm esmc:EsmcLayerNorm
        got_ocr2:GotOcr2LayerNorm lw_detr:LwDetrLayerNorm pp_formulanet:PPFormulaNetLayerNorm
        rf_detr:RfDetrLayerNorm sam:SamLayerNorm sam2:Sam2LayerNorm sam2_video:Sam2VideoLayerNorm
        sam3_tracker:Sam3TrackerLayerNorm sam3_tracker_video:Sam3TrackerVideoLayerNorm sam_hq:SamHQLayerNorm
        seggpt:SegGptLayerNorm slanext:SLANeXtLayerNorm unlimited_ocr:UnlimitedOcrSamLayerNorm
    """,
    "L2": """
        cohere:CohereLayerNorm cohere2:Cohere2LayerNorm cohere2_moe:Cohere2MoeLayerNorm
        cohere_compass:CohereCompassLayerNorm
    """,
    "L3": "olmo:OlmoLayerNorm",
    "L4": """
        moonshine_streaming:MoonshineStreamingLayerNorm nemotron:NemotronLayerNorm1P
        videoprism:VideoPrismLayerNorm
    """,
    "L5": "chameleon:ChameleonLayerNorm deberta:DebertaLayerNorm",
    "L6": "esm/esmfold:EsmFoldLayerNorm esmfold2:EsmFold2LayerNorm",
    "L7": "gradium_phonon_tts:GradiumPhononTTSFlowLayerNorm pocket_tts:PocketTTSFlowLayerNorm",
    "L8": "stablelm:StableLmLayerNormPerHead xlstm:xLSTMMultiHeadLayerNorm",
    "L9": """
        eomt:EomtLayerNorm2d eomt_dinov3:EomtDinov3LayerNorm2d squeezebert:SqueezeBertLayerNorm
        videomt:VideomtLayerNorm2d vitdet:VitDetLayerNorm
    """,
    "A1": """
        emu3:Emu3VQVAESpatialNorm esmfold2:EsmFold2AdaptiveLayerNorm
        qwen2_5_omni:Qwen2_5_OmniAdaLayerNormZero qwen2_5_omni:Qwen2_5_OmniAdaLayerNormZero_Final
        vibevoice:VibeVoiceDiffusionHeadAdaLayerNorm wavtokenizer:WavTokenizerAdaLayerNorm
    """,
    "GN1": "bit:BitGroupNormActivation emu3:Emu3VQVAEGroupNorm poolformer:PoolFormerGroupNorm",
    "GN2": """
        pe_audio:PeAudioMaskedGroupNorm pe_audio_video:PeAudioVideoMaskedGroupNorm
        pe_video:PeVideoMaskedGroupNorm
    """,
    "Q1": "zaya:ZayaQKNorm",
    "GN3": "gemma3n:Gemma3nAudioCumulativeGroupNorm",
    "BN1": "patchtsmixer:PatchTSMixerBatchNorm patchtst:PatchTSTBatchNorm",
    "BN2": """
        conditional_detr:ConditionalDetrFrozenBatchNorm2d d_fine:DFineFrozenBatchNorm2d
        dab_detr:DabDetrFrozenBatchNorm2d deformable_detr:DeformableDetrFrozenBatchNorm2d
        deimv2:Deimv2FrozenBatchNorm2d detr:DetrFrozenBatchNorm2d
        grounding_dino:GroundingDinoFrozenBatchNorm2d mm_grounding_dino:MMGroundingDinoFrozenBatchNorm2d
        pp_doclayout_v2:PPDocLayoutV2FrozenBatchNorm2d pp_doclayout_v3:PPDocLayoutV3FrozenBatchNorm2d
        pp_doclayout_v4:PPDocLayoutV4FrozenBatchNorm2d rt_detr:RTDetrFrozenBatchNorm2d
        rt_detr_v2:RTDetrV2FrozenBatchNorm2d table_transformer:TableTransformerFrozenBatchNorm2d
    """,
    "N0": "mobilebert:NoNorm phi4_multimodal:Phi4MultimodalAudioMeanVarianceNormLayer",
    "X1": "voxtral_realtime:VoxtralRealtimeTextAdaRmsNorm",
}
